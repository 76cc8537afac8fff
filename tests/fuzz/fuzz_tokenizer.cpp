// SPDX-License-Identifier: Apache-2.0
// Loads arbitrary bytes as a tokenizer and encodes arbitrary text with it. The input: a kind byte,
// then the text to encode, "\n--\n", the tokenizer file, and for tiktoken "\n--\n" and
// tokenizer_config.json. Kind bits: 0 tiktoken instead of tokenizer.json; 1 the file is a small
// valid tokenizer whose pre-tokenizer pattern is the given bytes (random JSON hardly ever gets that
// far).
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fuzz/require.hpp"
#include "text/byte_level.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace {

using namespace espalier::text;
using espalier::test::require;

std::string_view take_part(std::string_view& rest) {
    constexpr std::string_view kBorder = "\n--\n";
    const std::size_t end = rest.find(kBorder);
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + kBorder.size());
    return part;
}

// 256 byte tokens and a few merges over 'a', 'b' and the space.
std::string json_with_pattern(std::string_view bytes) {
    std::string pattern;
    append_valid_utf8(bytes, false, pattern);
    nlohmann::json vocab;
    for (int byte = 0; byte < 256; ++byte)
        vocab[letter_of_byte(static_cast<unsigned char>(byte))] = byte;
    vocab["aa"] = 256;
    vocab["ab"] = 257;
    vocab["aaab"] = 258;
    vocab["Ġa"] = 259;
    const nlohmann::json split = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                       {"add_prefix_space", bytes.size() % 2 == 1}};
    return nlohmann::json{
        {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
        {"decoder", byte_level},
        {"added_tokens", {{{"id", 300}, {"content", "<a>"}}}},
        {"model", {{"vocab", vocab}, {"merges", {"a a", "a b", "aa ab", "Ġ a"}}}}}
        .dump();
}

void check(const Tokenizer& tokenizer, std::string_view text) {
    for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::parsed}) {
        const auto ids = tokenizer.encode(text, special);
        if (!ids) continue;
        StreamDecoder decoder(tokenizer, false);
        std::string joined;
        for (const espalier::TokenId id : *ids) {
            require(id >= 0 && id < tokenizer.vocabulary());
            joined += decoder.push(id);
        }
        joined += decoder.finish();
        require(joined == tokenizer.decode(*ids, false));
        require(valid_utf8_prefix(joined) == joined.size());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::string_view text = take_part(rest);
    const std::string_view file = take_part(rest);
    const auto config = rest.empty() ? std::nullopt : std::optional(rest);
    const auto tokenizer =
        (data[0] & 1) != 0 ? Tokenizer::from_tiktoken(file, config, "fuzz")
        : (data[0] & 2) != 0
            ? Tokenizer::from_tokenizer_json(json_with_pattern(file), config, "fuzz")
            : Tokenizer::from_tokenizer_json(file, config, "fuzz");
    if (tokenizer) check(*tokenizer, text);
    return 0;
}
