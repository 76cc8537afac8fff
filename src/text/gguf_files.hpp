// SPDX-License-Identifier: Apache-2.0
// A GGUF file's tokenizer as a published model's files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace espalier {
struct GgufHeader;
}

namespace espalier::text {

// tokenizer.json and tokenizer_config.json, by name: reading them gives the tokenizer that
// Tokenizer::from_gguf gives. Kimi's vocabulary, which is merged by rank and published otherwise,
// is refused.
Expected<std::vector<std::pair<std::string, std::string>>> gguf_tokenizer_files(
    const GgufHeader& header, std::string_view name);

}  // namespace espalier::text
