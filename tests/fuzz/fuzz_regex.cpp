// SPDX-License-Identifier: Apache-2.0
// Compiles arbitrary bytes as a regular expression, alone and as a schema's pattern, and lets a
// random model write under it: what it writes is UTF-8, and JSON where it is a pattern.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/require.hpp"
#include "grammar/random_model.hpp"
#include "grammar/small_vocabulary.hpp"
#include "text/utf8.hpp"

namespace {

using namespace espalier;
using grammar::Kind;
using test::require;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static grammar::Compiler compiler(test::SmallVocabulary().make(),
                                      {.cache_bytes = 1 << 20, .threads = 1});
    if (size > 256) return 0;
    const std::string regex(reinterpret_cast<const char*>(data), size);
    if (const auto compiled = compiler.compile({.kind = Kind::regex, .text = regex})) {
        const test::Drawn drawn = test::draw_text(grammar::Matcher(*compiled), size, 10, 40);
        if (drawn.finished) require(text::valid_utf8_prefix(drawn.text) == drawn.text.size());
    }
    if (text::valid_utf8_prefix(regex) != regex.size()) return 0;
    const nlohmann::json schema = {{"type", "string"}, {"pattern", regex}};
    if (const auto compiled =
            compiler.compile({.kind = Kind::json_schema, .text = schema.dump()})) {
        const test::Drawn drawn = test::draw_text(grammar::Matcher(*compiled), size, 10, 40);
        if (drawn.finished) require(nlohmann::json::parse(drawn.text, nullptr, false).is_string());
    }
    return 0;
}
