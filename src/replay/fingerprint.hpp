// SPDX-License-Identifier: Apache-2.0
// Which model this is, as 16 hex digits: its configuration, its tokenizer, and its tensors by name,
// type, shape and content. Finds mistakes, not forgers. Of tensors above 1 MiB it reads 4 KiB in
// every 256 KiB: 1.6 %, so that of DeepSeek-V3's 671 GB 10 GB are touched.
#pragma once

#include <string>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"

namespace espalier::replay {

Expected<std::string> fingerprint(const checkpoint::Checkpoint& checkpoint);

}  // namespace espalier::replay
