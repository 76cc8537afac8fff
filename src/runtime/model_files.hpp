// SPDX-License-Identifier: Apache-2.0
// A model's files, found and opened once: headers and configuration are read, tensors are mapped.
// All that is needed to check a request before the weights are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "text/tokenizer.hpp"

namespace espalier::runtime {

struct ModelFiles {
    std::string name;  // as it was asked for: a directory or ORG/NAME
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
    std::shared_ptr<const checkpoint::Checkpoint> draft;  // an EAGLE3 draft for it; null: none
    std::shared_ptr<const text::Tokenizer> tokenizer;

    // draft: as name; empty: none.
    static Expected<ModelFiles> open(const std::string& name, const std::string& draft = "");
    // With the tokenizer of the checkpoint's directory.
    static Expected<ModelFiles> of(checkpoint::Checkpoint opened, const std::string& name,
                                   const std::string& draft = "");

    // Sentences for a log: what the checkpoint asks for and no part of the engine honours.
    std::vector<std::string> notes() const;

    // A prompt's tokens, the model's first one included; at least one, all of the vocabulary.
    Expected<std::vector<std::int32_t>> encode_prompt(std::string_view text,
                                                      text::SpecialTokens special) const;
};

}  // namespace espalier::runtime
