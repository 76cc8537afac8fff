// SPDX-License-Identifier: Apache-2.0
// What a request asks its text to be, in the words of three APIs, as the one type that grammars are
// compiled from: OpenAI's response_format, vLLM's structured_outputs, SGLang's regex, ebnf and
// json_schema. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "grammar/specification.hpp"
#include "server/fields.hpp"

namespace espalier::server {

struct GrammarField {
    grammar::Specification specification;
    std::string field;  // where the request says it, for errors
    // Specification held where a grammar cannot hold the first and the request does not insist.
    std::optional<grammar::Specification> otherwise = {};
    // Appended to errors: how a request says that it does not insist.
    std::string advice = {};
};

// Nothing: any text. Faults, and a second field that asks for something, are kept in `fields`.
// ordered: see Body.
std::optional<GrammarField> read_grammar(Fields& fields, const nlohmann::ordered_json& ordered);

}  // namespace espalier::server
