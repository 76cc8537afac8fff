// SPDX-License-Identifier: Apache-2.0
// The C++ half of tools/compare_tokenizer.py: reads records from standard input, answers on
// standard output. In: u8 mode (0 as_text, 1 parsed), u32 length, bytes. Out: u32 count, that many
// i32 ids (all little endian); count 0xFFFFFFFF for an error, whose sentence goes to standard
// error.
#include <cstdint>
#include <cstdio>
#include <string>

#include "text/tokenizer.hpp"

namespace {

template <typename T>
bool read_value(T& value) {
    return std::fread(&value, sizeof value, 1, stdin) == 1;
}

}  // namespace

int main(int argc, char** argv) {
    using namespace espalier::text;
    if (argc != 2) {
        std::fprintf(stderr, "usage: tokenize_stream DIRECTORY < records > ids\n");
        return 2;
    }
    const auto tokenizer = Tokenizer::load(argv[1]);
    if (!tokenizer) {
        std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
        return 1;
    }
    std::uint8_t mode = 0;
    std::uint32_t length = 0;
    std::string text;
    while (read_value(mode) && read_value(length)) {
        text.resize(length);
        if (length > 0 && std::fread(text.data(), length, 1, stdin) != 1) return 1;
        const auto ids =
            tokenizer->encode(text, mode == 1 ? SpecialTokens::parsed : SpecialTokens::as_text);
        if (!ids) std::fprintf(stderr, "%s\n", ids.error().message.c_str());
        const std::uint32_t count = ids ? static_cast<std::uint32_t>(ids->size()) : 0xFFFFFFFFu;
        std::fwrite(&count, sizeof count, 1, stdout);
        if (ids && count > 0) std::fwrite(ids->data(), sizeof(espalier::TokenId), count, stdout);
    }
    return 0;
}
