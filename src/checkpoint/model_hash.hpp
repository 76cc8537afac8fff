// SPDX-License-Identifier: Apache-2.0
// Hashes that tell models apart, as 16 hex digits. They find mistakes, not forgers.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"

namespace espalier::checkpoint {

// Configuration, tokenizer, and tensors by name, type, shape and content. Of tensors above 1 MiB it
// reads 4 KiB in every 256 KiB: 1.6 %, so that of DeepSeek-V3's 671 GB 10 GB are touched.
Expected<std::string> model_hash(const Checkpoint& checkpoint);

// The same of 64 bytes in the middle of each tensor: a page of each is touched.
Expected<std::string> header_hash(const Checkpoint& checkpoint);

// The tokenizer's files alone.
Expected<std::string> tokenizer_hash(const std::filesystem::path& directory);

}  // namespace espalier::checkpoint
