// SPDX-License-Identifier: Apache-2.0
// Writes what a random model writes under random schemas and expressions, a JSON object per line,
// for tools/check_grammars.py, which asks other people's checkers.
//   grammar_walks SCHEMAS SEED
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "grammar/random_model.hpp"
#include "grammar/schema_generator.hpp"
#include "grammar/small_vocabulary.hpp"

int main(int argc, char** argv) {
    using namespace espalier;
    using grammar::Kind;
    if (argc != 3) {
        std::fprintf(stderr, "usage: grammar_walks SCHEMAS SEED\n");
        return 2;
    }
    grammar::Compiler compiler(test::SmallVocabulary().make());
    const std::uint64_t first = std::strtoull(argv[2], nullptr, 10);
    for (std::uint64_t seed = first; seed < first + std::strtoull(argv[1], nullptr, 10); ++seed) {
        test::SchemaGenerator generator(seed);
        grammar::Specification specification{.any_whitespace = seed % 2 == 0};
        const bool regex = seed % 5 == 0;
        specification.kind = regex ? Kind::regex : Kind::json_schema;
        specification.text = regex ? generator.regex() : generator.schema().dump();
        nlohmann::json line = {{"kind", name(specification.kind)}, {"text", specification.text}};
        const auto compiled = compiler.compile(specification);
        if (!compiled) {
            line["refused"] = compiled.error().message;
            std::printf("%s\n", line.dump().c_str());
            continue;
        }
        line["outputs"] = nlohmann::json::array();
        for (std::uint64_t i = 0; i < 3; ++i) {
            const test::Drawn drawn = test::draw_text(grammar::Matcher(*compiled), seed * 3 + i);
            if (drawn.finished) line["outputs"].push_back(drawn.text);
        }
        std::printf("%s\n",
                    line.dump(-1, ' ', true, nlohmann::json::error_handler_t::strict).c_str());
    }
}
