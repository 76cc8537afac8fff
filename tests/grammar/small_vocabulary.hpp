// SPDX-License-Identifier: Apache-2.0
// A vocabulary to test with: every byte, pieces of JSON and text that cut across its tokens,
// markers, padding.
#pragma once

#include <string>
#include <vector>

#include "grammar/vocabulary.hpp"

namespace espalier::test {

struct SmallVocabulary {
    // bytes_only: the 256 bytes alone, the oracle for all others.
    explicit SmallVocabulary(bool bytes_only = false) {
        for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
        if (!bytes_only)
            for (const char* piece :
                 {"{\"",  "\":",      "\": ",     "\", \"",   "\"}",          "},",
                  "}]",   "[{",       "[[",       "]]",       "[]",           "{}",
                  "true", "false",    "null",     "tr",       "ue",           "fal",
                  "nul",  "  ",       "\n  ",     ", ",       ": ",           "12",
                  "00",   "0.",       "1e",       "-1",       "e-",           ".5",
                  "ab",   "abc",      "acab",     "ba",       "bab",          "the",
                  " the", "name",     "\"name",   "age",      "\"age\"",      "id",
                  "red",  "green",    "re",       "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                  "\xc3", "\xe2\x82", "\xf0\x9f", "\\n",      "\\u00",        "\\\"",
                  "\\\\", "20",       "-0",       "T1",       ":0",           "Z\"",
                  "@a",   ".c",       "://",      "1.",       "\"\"",         "\"a",
                  "a\"",  "\"b\":",   "}\n",      "\t",       " \"",          "null,",
                  "1,",   "],",       "\"]"})
                tokens.emplace_back(piece);
        marker = static_cast<TokenId>(tokens.size());
        tokens.emplace_back("<marker>");
        stop = static_cast<TokenId>(tokens.size());
        tokens.emplace_back("<end>");
        other_stop = static_cast<TokenId>(tokens.size());
        tokens.emplace_back("<eot>");
        size = static_cast<std::int64_t>(tokens.size()) + 7;
    }

    grammar::Vocabulary make() const {
        const std::vector<TokenId> ends = {stop, other_stop};
        const std::vector<TokenId> added = {marker, stop, other_stop};
        return grammar::Vocabulary::from_bytes(tokens, size, ends, added).value();
    }

    std::vector<std::string> tokens;
    TokenId marker = 0;
    TokenId stop = 0;
    TokenId other_stop = 0;
    std::int64_t size = 0;
};

}  // namespace espalier::test
