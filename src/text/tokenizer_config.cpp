// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_config.hpp"

#include <algorithm>
#include <charconv>

#include "base/json.hpp"
#include "base/mapped_file.hpp"
#include "text/json_fields.hpp"
#include "text/vocabulary.hpp"

namespace espalier::text {
namespace {

// A token is written as its text, or as an AddedToken object with `content`.
Expected<std::optional<std::string>> token_text(const Json& value, std::string_view name,
                                                std::string_view field) {
    if (value.is_null()) return std::nullopt;
    const Json& text = value.is_object() ? member(value, "content") : value;
    if (!text.is_string())
        return wrong_type(name, field, text, "a string or an object with 'content'");
    return text.get<std::string>();
}

Expected<void> read_special_tokens(const Json& root, std::string_view name,
                                   TokenizerConfig& config) {
    for (const char* field : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
        ESPALIER_ASSIGN_OR_RETURN(const auto text, token_text(member(root, field), name, field));
        if (!text) continue;
        config.special_tokens.push_back(*text);
        if (field == std::string_view("bos_token")) config.bos_token = *text;
        if (field == std::string_view("eos_token")) config.eos_token = *text;
    }
    const Json& more = member(root, "additional_special_tokens");
    if (!more.is_null() && !more.is_array())
        return wrong_type(name, "additional_special_tokens", more, "a list");
    for (const Json& value : more) {
        ESPALIER_ASSIGN_OR_RETURN(const auto text,
                                  token_text(value, name, "additional_special_tokens"));
        if (text) config.special_tokens.push_back(*text);
    }
    return {};
}

Expected<void> read_added_tokens(const Json& root, std::string_view name, TokenizerConfig& config) {
    const Json& decoder = member(root, "added_tokens_decoder");
    if (decoder.is_null()) return {};
    if (!decoder.is_object()) return wrong_type(name, "added_tokens_decoder", decoder, "an object");
    for (const auto& [key, token] : decoder.items()) {
        std::int64_t id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
            id >= VocabularyLimits::kTokens)
            return fail(ErrorKind::invalid,
                        "{}: added_tokens_decoder has the key '{}', expected an id in 0…{}", name,
                        key, VocabularyLimits::kTokens - 1);
        const std::string path = fmt::format("added_tokens_decoder.{}", id);
        ESPALIER_ASSIGN_OR_RETURN(const std::string_view content,
                                  string_field(token, "content", name, path));
        ESPALIER_ASSIGN_OR_RETURN(const bool special,
                                  bool_field(token, "special", false, name, path));
        ESPALIER_RETURN_IF_ERROR(refuse_matching_flags(token, name, path));
        config.added_tokens.push_back({id, std::string(content), special});
    }
    std::ranges::sort(config.added_tokens, {}, &TokenizerConfig::Added::id);
    return {};
}

Expected<std::string> read_chat_template(const Json& root, std::string_view name) {
    const Json& value = member(root, "chat_template");
    if (value.is_null()) return std::string();
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) return wrong_type(name, "chat_template", value, "a string or a list");
    for (const Json& entry : value) {
        ESPALIER_ASSIGN_OR_RETURN(const auto entry_name,
                                  string_field(entry, "name", name, "chat_template[]"));
        ESPALIER_ASSIGN_OR_RETURN(const auto text,
                                  string_field(entry, "template", name, "chat_template[]"));
        if (entry_name == "default" || value.size() == 1) return std::string(text);
    }
    return fail(ErrorKind::unsupported,
                "{}: chat_template lists {} templates and none is named 'default'", name,
                value.size());
}

}  // namespace

Expected<TokenizerConfig> parse_tokenizer_config(std::optional<std::string_view> json_text,
                                                 std::string_view name) {
    TokenizerConfig config;
    if (!json_text) return config;
    ESPALIER_ASSIGN_OR_RETURN(const Json root, parse_json(*json_text, name));
    if (!root.is_object()) return wrong_type(name, "the top level", root, "an object");
    ESPALIER_RETURN_IF_ERROR(read_special_tokens(root, name, config));
    ESPALIER_RETURN_IF_ERROR(read_added_tokens(root, name, config));
    const Json& add_bos = member(root, "add_bos_token");
    if (!add_bos.is_null()) {
        if (!add_bos.is_boolean()) return wrong_type(name, "add_bos_token", add_bos, "a boolean");
        config.add_bos_token = add_bos.get<bool>();
    }
    ESPALIER_ASSIGN_OR_RETURN(config.chat_template, read_chat_template(root, name));
    return config;
}

Expected<std::optional<std::string>> read_chat_template_file(
    const std::filesystem::path& directory) {
    const std::filesystem::path path = directory / "chat_template.jinja";
    ESPALIER_ASSIGN_OR_RETURN(auto file,
                              read_optional_text_file(path, VocabularyLimits::kFileBytes));
    if (file && file->empty())
        return fail(ErrorKind::invalid, "{}: empty, expected a chat template", path.string());
    return file;
}

}  // namespace espalier::text
