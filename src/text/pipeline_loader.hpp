// SPDX-License-Identifier: Apache-2.0
// The parts of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor, decoder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "text/pre_tokenizer.hpp"

namespace espalier::text {

struct Pipeline {
    PreTokenizer pre_tokenizer;
    std::optional<std::string> bos_token;  // what a TemplateProcessing puts before the text
};

// root: the whole of tokenizer.json. Parts that would change ids or text and are not implemented
// are errors.
Expected<Pipeline> read_pipeline(const nlohmann::json& root, std::string_view name);

// The step "pre_tokenizer" of root alone.
Expected<PreTokenizer> read_pre_tokenizer(const nlohmann::json& root, std::string_view name);

}  // namespace espalier::text
