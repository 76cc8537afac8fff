// SPDX-License-Identifier: Apache-2.0
#include "accept/tiny_tokenizer.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace espalier::accept {
namespace {

const std::vector<std::string>& pieces() {
    static const std::vector<std::string> list = {
        "ab", "bc", "abc", "aa", "ba", "é", "你", "好a", "\xbd\xa0", "\xa9\n", "b\xe4", "a\xc3"};
    return list;
}

std::string base64(std::string_view bytes) {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 3; ++i)
            bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i])
                                                      : std::uint32_t{0});
        for (std::size_t i = 0; i < 4; ++i)
            text += at + i <= bytes.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
    }
    return text;
}

text::Tokenizer make() {
    std::string ranks;
    int rank = 0;
    for (int byte = 0; byte < 256; ++byte) {
        const char text = static_cast<char>(byte);
        ranks += fmt::format("{} {}\n", base64({&text, 1}), rank++);
    }
    for (const std::string& piece : pieces())
        ranks += fmt::format("{} {}\n", base64(piece), rank++);
    std::string added;
    for (const std::string_view content : {kEos, kTurn, kTool})
        added += fmt::format(R"({}"{}": {{"content": "{}", "special": {}}})",
                             added.empty() ? "" : ", ", rank++, content, content != kTool);
    auto tokenizer = text::Tokenizer::from_tiktoken(
        ranks, fmt::format(R"({{"added_tokens_decoder": {{{}}}}})", added), "tiny");
    if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
    return std::move(*tokenizer);
}

}  // namespace

const text::Tokenizer& tiny_tokenizer() {
    static const text::Tokenizer tokenizer = make();
    return tokenizer;
}

std::int32_t id_of(std::string_view bytes) { return tiny_tokenizer().id_of(bytes).value(); }

const std::vector<std::int32_t>& tiny_palette() {
    static const std::vector<std::int32_t> palette = [] {
        std::vector<std::int32_t> ids;
        for (const std::string& piece : pieces()) ids.push_back(id_of(piece));
        for (const std::string_view piece :
             {"a", "b", "c", "\n", "\xc3", "\xa9", "\xe4", "\xbd", "\xa0"})
            ids.push_back(id_of(piece));
        for (const std::string_view piece : {kEos, kTurn, kTool}) ids.push_back(id_of(piece));
        return ids;
    }();
    return palette;
}

}  // namespace espalier::accept
