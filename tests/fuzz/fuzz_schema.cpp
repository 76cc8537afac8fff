// SPDX-License-Identifier: Apache-2.0
// Compiles arbitrary bytes as a JSON schema, an EBNF grammar or a structural tag (by the first
// byte), and walks a few tokens: every mask agrees with what is accepted, and what is accepted can
// be taken back.
#include <cstdint>
#include <string>

#include "fuzz/require.hpp"
#include "grammar/random_model.hpp"
#include "grammar/small_vocabulary.hpp"

namespace {

using namespace espalier;
using grammar::Kind;
using test::require;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static grammar::Compiler compiler(test::SmallVocabulary().make(),
                                      {.cache_bytes = 1 << 20, .threads = 1});
    if (size == 0 || size > 4096) return 0;
    grammar::Specification specification;
    specification.kind = data[0] == 'e'   ? Kind::ebnf
                         : data[0] == 't' ? Kind::structural_tag
                                          : Kind::json_schema;
    specification.strict = data[0] != 'l';
    specification.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
    const auto compiled = compiler.compile(specification);
    if (!compiled) {
        require(!compiled.error().message.empty());
        return 0;
    }
    grammar::Matcher matcher(*compiled);
    std::uint64_t state = size;
    for (int step = 0; step < 8 && !matcher.finished(); ++step) {
        const auto legal = test::legal_tokens(matcher);
        if (legal.empty()) break;
        state = state * 6364136223846793005u + 1442695040888963407u;
        require(matcher.accept(legal[(state >> 33) % legal.size()]));
    }
    require(matcher.failure().empty());
    matcher.rollback(matcher.accepted());
    require(test::mask_of(matcher) ==
            test::mask_of(*std::make_unique<grammar::Matcher>(*compiled)));
    return 0;
}
