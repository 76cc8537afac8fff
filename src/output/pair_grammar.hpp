// SPDX-License-Identifier: Apache-2.0
// The grammar of arguments that are pairs of plain text (formats.hpp). A string stands there
// without quotes, so what a schema says of one is held where that can be said of its text: enum,
// const, minLength and maxLength. Other words of strings, and alternatives between strings and more
// than plain types, are refused by name. Pure.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "output/formats.hpp"

namespace espalier::output {

struct PairGrammar {
    const PairFormat& format;
    // Appends a text whose markers become tokens where the tokenizer has them.
    std::function<void(nlohmann::ordered_json& elements, std::string_view text)> append;
    bool markers_are_tokens = true;  // false: strings have no '<'
};

// Appends to `elements` the pairs of an object of that schema, in the order of its properties;
// without properties any pairs.
Expected<void> append_pairs(const PairGrammar& grammar, const nlohmann::ordered_json& schema,
                            nlohmann::ordered_json& elements);

}  // namespace espalier::output
