// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file read as a stream of events: no document is built, so that
// duplicated names are seen (a document would keep one of them) and a hostile header costs no more
// than its own bytes.
#pragma once

#include <string_view>

#include "base/error.hpp"
#include "checkpoint/safetensors.hpp"

namespace espalier::checkpoint {

// Names, dtypes, shapes and offsets as written: `begin` and `end` still count from the end of the
// header, and nothing is checked but the form.
Expected<TensorEntries> read_header_json(std::string_view json_text, std::string_view name);

}  // namespace espalier::checkpoint
