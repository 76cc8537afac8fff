// SPDX-License-Identifier: Apache-2.0
// tokenizer.json and tokenizer_config.json for synthetic models, in the form DeepSeek-V3 publishes
// them.
#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// Ids 0–2 as DeepSeek-V3 has them; the two of its chat template follow.
constexpr std::array<std::string_view, 5> kSpecial = {"<｜begin▁of▁sentence｜>",
                                                      "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>",
                                                      "<｜User｜>", "<｜Assistant｜>"};
constexpr std::int64_t kBytes = 256;

std::string utf8(std::uint32_t code_point) {  // below U+0800, all that the byte alphabet needs
    if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
    return {static_cast<char>(0xC0 | (code_point >> 6)),
            static_cast<char>(0x80 | (code_point & 0x3F))};
}

// The printable stand-ins of GPT-2's byte-level BPE in their usual order: bytes that print stand
// for themselves, the others for U+0100 and on.
std::vector<std::string> byte_alphabet() {
    const auto prints = [](std::uint32_t byte) {
        return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    };
    std::vector<std::string> alphabet;
    for (std::uint32_t byte = 0; byte < kBytes; ++byte)
        if (prints(byte)) alphabet.push_back(utf8(byte));
    for (std::uint32_t stand_in = 0x100; alphabet.size() < kBytes; ++stand_in)
        alphabet.push_back(utf8(stand_in));
    return alphabet;
}

// Letter pairs, then pairs of pairs: 676 + 456,976 tokens, all reachable by their merges.
struct Merges {
    std::vector<std::array<std::string, 2>> list;

    explicit Merges(std::size_t count) {
        std::vector<std::string> pairs;
        for (char first = 'a'; first <= 'z'; ++first)
            for (char second = 'a'; second <= 'z'; ++second) {
                pairs.push_back({first, second});
                list.push_back({std::string(1, first), std::string(1, second)});
            }
        for (std::size_t i = 0; i < pairs.size() * pairs.size() && list.size() < count; ++i)
            list.push_back({pairs[i / pairs.size()], pairs[i % pairs.size()]});
        if (list.size() > count) list.resize(count);
    }
};

Json split(const char* pattern) {
    return {{"type", "Split"},
            {"pattern", {{"Regex", pattern}}},
            {"behavior", "Isolated"},
            {"invert", false}};
}

Json byte_level() {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", false}};
}

Json added_token(std::string_view content) {
    return {{"content", content}, {"single_word", false}, {"lstrip", false},
            {"rstrip", false},    {"normalized", false},  {"special", true}};
}

}  // namespace

Expected<std::string> synthetic_tokenizer_json(std::int64_t vocab_size) {
    constexpr std::int64_t kSmallest = static_cast<std::int64_t>(kSpecial.size()) + kBytes;
    if (vocab_size < kSmallest)
        return fail(ErrorKind::invalid,
                    "vocab_size is {}; a synthetic tokenizer has at least {} tokens", vocab_size,
                    kSmallest);
    Json added = Json::array();
    std::int64_t next_id = 0;
    for (const std::string_view token : kSpecial) {
        Json entry = {{"id", next_id++}};
        entry.update(added_token(token));
        added.push_back(std::move(entry));
    }
    // A sorted object: ordered_json searches linearly on every insertion, and ids are explicit
    // anyway.
    nlohmann::json tokens = nlohmann::json::object();
    for (const std::string& token : byte_alphabet()) tokens[token] = next_id++;
    Json merges = Json::array();
    for (const auto& [left, right] :
         Merges(static_cast<std::size_t>(vocab_size - kSmallest)).list) {
        tokens[left + right] = next_id++;
        merges.push_back(left + " " + right);
    }
    const Json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"vocab", Json(tokens)},
                        {"merges", std::move(merges)}};
    const Json pre_tokenizers = {split("\\p{N}{1,3}"),
                                 split("\\s?[\\p{L}\\p{M}]+|\\s+(?!\\S)|\\s+"), byte_level()};
    const Json document = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", std::move(added)},
        {"normalizer", {{"type", "Sequence"}, {"normalizers", Json::array()}}},
        {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", pre_tokenizers}}},
        {"post_processor", byte_level()},
        {"decoder", byte_level()},
        {"model", model}};
    return document.dump() + "\n";
}

std::string synthetic_tokenizer_config_json() {
    const auto typed = [](std::string_view content) {
        Json token = {{"__type", "AddedToken"}};
        token.update(added_token(content));
        token.erase("special");
        return token;
    };
    const Json document = {{"add_bos_token", true},
                           {"add_eos_token", false},
                           {"bos_token", typed(kSpecial[0])},
                           {"clean_up_tokenization_spaces", false},
                           {"eos_token", typed(kSpecial[1])},
                           {"model_max_length", 131072},
                           {"pad_token", typed(kSpecial[2])},
                           {"unk_token", nullptr},
                           {"tokenizer_class", "LlamaTokenizerFast"}};
    return document.dump(2) + "\n";
}

}  // namespace espalier::checkpoint
