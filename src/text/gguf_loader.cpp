// SPDX-License-Identifier: Apache-2.0
// A tokenizer from GGUF metadata: byte-level BPE, spelled as in tokenizer.json. How text is cut
// into words the file only names (`tokenizer.ggml.pre`): the table below has what the named models
// publish.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/at.hpp"
#include "base/gguf.hpp"
#include "base/json.hpp"
#include "text/bpe_vocabulary.hpp"
#include "text/byte_level.hpp"
#include "text/gguf_files.hpp"
#include "text/model.hpp"
#include "text/pipeline_loader.hpp"
#include "text/tiktoken_ranks.hpp"
#include "text/utf8.hpp"

namespace espalier::text {
namespace {

struct Published {
    std::string_view pre;
    std::string_view steps;  // of tokenizer.json's pre_tokenizer; empty: Kimi's, merged by rank
    bool ignore_merges = false;
};
constexpr Published kPublished[] = {
    {"deepseek-llm",
     R"json({"type": "Split", "pattern": {"Regex": "[\r\n]"}, "behavior": "Isolated", "inver)json"
     R"json(t": false}, )json"
     R"json({"type": "Split", "pattern": {"Regex": "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆ)json"
     R"json(Έ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐ)json"
     R"json(ῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-)json"
     R"json(ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"}, "behavior": "Isolated", "invert": false}, )json"
     R"json({"type": "Split", "pattern": {"Regex": "\\s?[!-/:-~！-／：-～‘-‟　-。]+"}, "behavior":)json"
     R"json( "Isolated", "invert": false}, )json"
     R"json({"type": "Split", "pattern": {"Regex": "\\s+$"}, "behavior": "Isolated", "invert)json"
     R"json(": false}, )json"
     R"json({"type": "Split", "pattern": {"Regex": "[一-龥ࠀ-一가-퟿]+"}, "behavior": "Isolated", )json"
     R"json("invert": false}, )json"
     R"json({"type": "Digits", "individual_digits": true}, )json"
     R"json({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_rege)json"
     R"json(x": false})json"},
    {"deepseek-v3",
     R"json({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated", ")json"
     R"json(invert": false}, )json"
     R"json({"type": "Split", "pattern": {"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, "behavior": "Isolated", )json"
     R"json("invert": false}, )json"
     R"json({"type": "Split", "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{)json"
     R"json(|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*)json"
     R"json(|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, )json"
     R"json({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_rege)json"
     R"json(x": false})json"},
    {"glm4",
     R"json({"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p)json"
     R"json({L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+)json"
     R"json((?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, )json"
     R"json({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_rege)json"
     R"json(x": false})json",
     true},
    {"kimi-k2", ""},
};

// Kinds of tokens, in the format's numbers.
enum class TokenKind : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

struct GgufTokens {
    std::vector<std::string_view> texts;  // [id]
    std::vector<TokenKind> kinds;         // [id]
};

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kKinds = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";

Expected<const Published*> find_published(const GgufHeader& header, std::string_view name) {
    const auto text_of = [&](const char* key) {
        const GgufValue* value = header.find(key);
        return value == nullptr ? std::nullopt : value->text();
    };
    const GgufValue* model = header.find("tokenizer.ggml.model");
    if (model == nullptr)
        return fail(ErrorKind::not_found, "{}: no tokenizer.ggml.model; it has no tokenizer", name);
    if (text_of("tokenizer.ggml.model") != "gpt2")
        return fail(ErrorKind::unsupported, "{}: tokenizer.ggml.model is {}, supported is 'gpt2'",
                    name, model->shown());
    std::string known;
    const auto pre = text_of("tokenizer.ggml.pre");
    for (const Published& published : kPublished) {
        if (pre == published.pre) return &published;
        known += fmt::format("{}'{}'", known.empty() ? "" : ", ", published.pre);
    }
    const GgufValue* value = header.find("tokenizer.ggml.pre");
    return fail(ErrorKind::unsupported, "{}: tokenizer.ggml.pre is {}, supported are {}", name,
                value == nullptr ? "not there" : value->shown(), known);
}

Expected<GgufTokens> read_tokens(const GgufHeader& header, std::string_view name) {
    const GgufValue* list = header.find(kTokens);
    auto texts = list == nullptr ? std::nullopt : list->texts();
    if (!texts) return fail(ErrorKind::invalid, "{}: {} is no list of strings", name, kTokens);
    if (std::ssize(*texts) > VocabularyLimits::kTokens)
        return fail(ErrorKind::exhausted, "{}: {} has {} entries, more than the limit of {}", name,
                    kTokens, texts->size(), VocabularyLimits::kTokens);
    GgufTokens tokens{.texts = std::move(*texts), .kinds = {}};
    tokens.kinds.assign(tokens.texts.size(), TokenKind::normal);
    const GgufValue* kinds = header.find(kKinds);
    if (kinds == nullptr) return tokens;
    const auto numbers = kinds->integers();
    if (!numbers || numbers->size() != tokens.texts.size())
        return fail(ErrorKind::invalid, "{}: {} is {}, expected {} integers", name, kKinds,
                    kinds->shown(), tokens.texts.size());
    for (std::size_t id = 0; id < numbers->size(); ++id) {
        const std::int64_t kind = (*numbers)[id];
        if (kind < 1 || kind > 6 || kind == static_cast<std::int64_t>(TokenKind::byte))
            return fail(ErrorKind::unsupported, "{}: {}[{}] is {}, expected 1 to 5", name, kKinds,
                        id, kind);
        tokens.kinds[id] = static_cast<TokenKind>(kind);
    }
    return tokens;
}

bool is_marker(TokenKind kind) {
    return kind == TokenKind::control || kind == TokenKind::user_defined ||
           kind == TokenKind::unknown;
}

// Ids, bytes, and which of them merging may arrive at. An unused id stands for nothing.
Expected<BpeTokens> spell_out(const GgufTokens& from, std::string_view name) {
    BpeTokens tokens;
    for (std::size_t id = 0; id < from.texts.size(); ++id) {
        const std::string_view text = from.texts[id];
        if (from.kinds[id] == TokenKind::unused) {
            ESPALIER_RETURN_IF_ERROR(
                place_token(static_cast<std::int64_t>(id), "", name, kTokens, tokens));
            continue;
        }
        ESPALIER_RETURN_IF_ERROR(check_token_length(text, name, kTokens));
        if (valid_utf8_prefix(text) != text.size())
            return fail(ErrorKind::invalid, "{}: {}[{}] is not valid UTF-8", name, kTokens, id);
        auto bytes = bytes_of_letters(text);
        const bool normal = from.kinds[id] == TokenKind::normal;
        const bool spelled = bytes.has_value();
        ESPALIER_RETURN_IF_ERROR(place_token(static_cast<std::int64_t>(id),
                                             spelled ? std::move(*bytes) : std::string(text), name,
                                             kTokens, tokens));
        tokens.reachable[id] = normal && spelled;
        if (!tokens.ids.emplace(text, static_cast<TokenId>(id)).second)
            return fail(ErrorKind::invalid, "{}: {} has '{}' twice, as {} and {}", name, kTokens,
                        text, tokens.ids.at(text), id);
    }
    return tokens;
}

Expected<std::unique_ptr<Tokenizer::Model>> merged_by_list(const GgufHeader& header,
                                                           const Published& published,
                                                           const BpeTokens& tokens,
                                                           std::string_view name) {
    const GgufValue* list = header.find(kMerges);
    const auto merges = list == nullptr ? std::nullopt : list->texts();
    if (!merges) return fail(ErrorKind::invalid, "{}: {} is no list of strings", name, kMerges);
    for (std::size_t i = 0; i < merges->size(); ++i)
        if (valid_utf8_prefix((*merges)[i]) != (*merges)[i].size())
            return fail(ErrorKind::invalid, "{}: {}[{}] is not valid UTF-8", name, kMerges, i);
    const BpeFields fields{name, kTokens, kMerges};
    ESPALIER_ASSIGN_OR_RETURN(Bpe bpe, make_bpe(tokens, merges->size(), fields, [&](std::size_t i) {
                                  return parts_of_text((*merges)[i], fields, i);
                              }));
    auto model = std::make_unique<Tokenizer::Model>(Vocabulary(tokens.bytes), std::move(bpe));
    ESPALIER_ASSIGN_OR_RETURN(
        const nlohmann::json steps,
        parse_json(fmt::format(R"({{"pre_tokenizer":{{"type":"Sequence","pretokenizers":[{}]}}}})",
                               published.steps),
                   published.pre));
    ESPALIER_ASSIGN_OR_RETURN(model->pre_tokenizer, read_pre_tokenizer(steps, published.pre));
    model->index_tokens(tokens.reachable, published.ignore_merges);
    return model;
}

// The file's merges are one way to each token; tiktoken takes every way.
Expected<std::unique_ptr<Tokenizer::Model>> merged_by_rank(const BpeTokens& tokens,
                                                           std::string_view name) {
    const auto ranks = static_cast<std::size_t>(std::ranges::find(tokens.reachable, false) -
                                                tokens.reachable.begin());
    if (std::find(tokens.reachable.begin() + static_cast<std::ptrdiff_t>(ranks),
                  tokens.reachable.end(), true) != tokens.reachable.end())
        return fail(ErrorKind::unsupported,
                    "{}: {} has normal tokens behind others: their ids are no ranks", name,
                    kTokens);
    Vocabulary vocabulary(tokens.bytes);
    for (std::size_t id = 0; id < ranks; ++id) {
        if (vocabulary.find(tokens.bytes[id]))
            return fail(ErrorKind::invalid, "{}: {} has the bytes of {} twice", name, kTokens, id);
        vocabulary.index(static_cast<TokenId>(id), true);
    }
    ESPALIER_ASSIGN_OR_RETURN(Bpe bpe, bpe_of_ranks(vocabulary, ranks, name));
    auto model = std::make_unique<Tokenizer::Model>(std::move(vocabulary), std::move(bpe));
    ESPALIER_RETURN_IF_ERROR(cut_as_kimi(*model, name));
    return model;
}

}  // namespace

Expected<TokenizerConfig> gguf_tokenizer_config(const GgufHeader& header, std::string_view name) {
    TokenizerConfig config;
    const GgufValue* list = header.find(kTokens);
    const auto tokens = list == nullptr ? std::nullopt : list->texts();
    const auto token = [&](const char* key) -> Expected<std::optional<std::string>> {
        const GgufValue* value = header.find(key);
        if (value == nullptr) return std::nullopt;
        const auto id = value->integer();
        if (!tokens || !id || *id < 0 || *id >= std::ssize(*tokens))
            return fail(ErrorKind::invalid, "{}: {} is {}, expected an id of the {} tokens", name,
                        key, value->shown(), tokens ? tokens->size() : 0);
        return std::string((*tokens)[static_cast<std::size_t>(*id)]);
    };
    ESPALIER_ASSIGN_OR_RETURN(config.bos_token, token("tokenizer.ggml.bos_token_id"));
    ESPALIER_ASSIGN_OR_RETURN(config.eos_token, token("tokenizer.ggml.eos_token_id"));
    config.add_bos_token = false;
    if (const GgufValue* adds = header.find("tokenizer.ggml.add_bos_token")) {
        config.add_bos_token = adds->boolean();
        if (!config.add_bos_token)
            return fail(ErrorKind::invalid, "{}: tokenizer.ggml.add_bos_token is {}", name,
                        adds->shown());
    }
    if (const GgufValue* text = header.find("tokenizer.chat_template")) {
        const auto source = text->text();
        if (!source || valid_utf8_prefix(*source) != source->size() ||
            source->size() > VocabularyLimits::kFileBytes)
            return fail(ErrorKind::invalid, "{}: tokenizer.chat_template is no text of UTF-8",
                        name);
        config.chat_template = *source;
    }
    return config;
}

Expected<Tokenizer> Tokenizer::from_gguf(const GgufHeader& header, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const Published* published, find_published(header, name));
    ESPALIER_ASSIGN_OR_RETURN(const TokenizerConfig config, gguf_tokenizer_config(header, name));
    ESPALIER_ASSIGN_OR_RETURN(const GgufTokens listed, read_tokens(header, name));
    ESPALIER_ASSIGN_OR_RETURN(const BpeTokens tokens, spell_out(listed, name));
    ESPALIER_ASSIGN_OR_RETURN(auto model, published->steps.empty()
                                              ? merged_by_rank(tokens, name)
                                              : merged_by_list(header, *published, tokens, name));
    for (std::size_t id = 0; id < listed.texts.size(); ++id)
        if (is_marker(listed.kinds[id]))
            model->add({.id = static_cast<TokenId>(id),
                        .content = std::string(listed.texts[id]),
                        .special = listed.kinds[id] != TokenKind::user_defined});
    ESPALIER_RETURN_IF_ERROR(apply_config(config, name, *model));
    return Tokenizer(std::move(model));
}

namespace {

nlohmann::json byte_level() {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", false}};
}

nlohmann::json marker_json(std::size_t id, std::string_view content, TokenKind kind) {
    return {{"id", id},
            {"content", content},
            {"single_word", false},
            {"lstrip", false},
            {"rstrip", false},
            {"normalized", false},
            {"special", kind != TokenKind::user_defined}};
}

nlohmann::json config_json(const TokenizerConfig& config) {
    nlohmann::json json = {{"add_bos_token", config.add_bos_token.value_or(false)},
                           {"add_eos_token", false},
                           {"clean_up_tokenization_spaces", false},
                           {"tokenizer_class", "LlamaTokenizerFast"}};
    if (config.bos_token) json["bos_token"] = *config.bos_token;
    if (config.eos_token) json["eos_token"] = *config.eos_token;
    if (!config.chat_template.empty()) json["chat_template"] = config.chat_template;
    return json;
}

}  // namespace

Expected<std::vector<std::pair<std::string, std::string>>> gguf_tokenizer_files(
    const GgufHeader& header, std::string_view name) {
    ESPALIER_RETURN_IF_ERROR(Tokenizer::from_gguf(header, name));  // nothing in it is at fault
    ESPALIER_ASSIGN_OR_RETURN(const Published* published, find_published(header, name));
    if (published->steps.empty())
        return fail(ErrorKind::unsupported,
                    "{}: tokenizer.ggml.pre is '{}', merged by rank; tokenizer.json has no form "
                    "for it",
                    name, published->pre);
    ESPALIER_ASSIGN_OR_RETURN(const TokenizerConfig config, gguf_tokenizer_config(header, name));
    ESPALIER_ASSIGN_OR_RETURN(const GgufTokens listed, read_tokens(header, name));
    nlohmann::json vocabulary = nlohmann::json::object(), added = nlohmann::json::array();
    // Markers among the others are in the vocabulary, too, which is where their ids come from;
    // those behind it are not, as published: a vocabulary that ignores merges would find them.
    const auto last = std::find(listed.kinds.rbegin(), listed.kinds.rend(), TokenKind::normal);
    for (std::size_t id = 0; id < listed.texts.size(); ++id) {
        if (listed.kinds[id] == TokenKind::unused) continue;
        if (std::ssize(listed.kinds) - static_cast<std::ptrdiff_t>(id) >
            last - listed.kinds.rbegin())
            vocabulary[std::string(listed.texts[id])] = id;
        if (is_marker(listed.kinds[id]))
            added.push_back(marker_json(id, listed.texts[id], listed.kinds[id]));
    }
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json steps,
                              parse_json(fmt::format("[{}]", published->steps), published->pre));
    const nlohmann::json document = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"normalizer", nullptr},
        {"added_tokens", std::move(added)},
        {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
        {"post_processor", byte_level()},
        {"decoder", byte_level()},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", published->ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", *header.find(kMerges)->texts()}}}};
    return std::vector<std::pair<std::string, std::string>>{
        {"tokenizer.json", document.dump() + "\n"},
        {"tokenizer_config.json", config_json(config).dump(2) + "\n"}};
}

}  // namespace espalier::text
