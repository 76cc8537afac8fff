// SPDX-License-Identifier: Apache-2.0
// What a request and its model make of a text between them: where reasoning ends, what the answer
// is held to, and how both are told apart again. Pure.
#pragma once

#include <optional>

#include "accept/constraint.hpp"
#include "chat/template.hpp"
#include "output/parser.hpp"
#include "server/generation_request.hpp"

namespace espalier::server {

struct OutputPlan {
    output::ParserOptions parser;
    std::optional<GrammarField> grammar;             // to be compiled
    std::optional<accept::ReasoningRule> reasoning;  // of the engine
    bool keeps_special_tokens = false;  // markers are special tokens, and must be in the text
};

// The plan for a chat whose prompt is `rendered`. Refuses tools and reasoning budgets if the model
// has no known format for them.
Expected<OutputPlan> plan_chat(const GenerationRequest& request, const output::Formats& formats,
                               const text::Tokenizer& tokenizer, const chat::Rendered& rendered);

}  // namespace espalier::server
