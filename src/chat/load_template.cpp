// SPDX-License-Identifier: Apache-2.0
#include "base/gguf.hpp"
#include "base/mapped_file.hpp"
#include "chat/template.hpp"
#include "text/tokenizer_config.hpp"
#include "text/vocabulary.hpp"

namespace espalier::chat {

namespace {

Expected<std::optional<Template>> compile(const std::string& source,
                                          const text::TokenizerConfig& config,
                                          const std::string& name) {
    auto compiled = Template::compile(source);
    if (!compiled) return fail(compiled.error().kind, "{}: {}", name, compiled.error().message);
    if (config.bos_token) compiled->define("bos_token", *config.bos_token);
    if (config.eos_token) compiled->define("eos_token", *config.eos_token);
    return std::optional<Template>(std::move(*compiled));
}

Expected<std::optional<Template>> gguf_template(const std::filesystem::path& path) {
    ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    const std::string name = path.filename().string();
    ESPALIER_ASSIGN_OR_RETURN(const GgufHeader header, parse_gguf(file.bytes(), name));
    ESPALIER_ASSIGN_OR_RETURN(const auto config, text::gguf_tokenizer_config(header, name));
    if (config.chat_template.empty()) return std::nullopt;
    return compile(config.chat_template, config, name + ": tokenizer.chat_template");
}

}  // namespace

Expected<std::optional<Template>> load_template(const std::filesystem::path& directory) {
    if (is_gguf_name(directory.native())) return gguf_template(directory);
    const std::filesystem::path config_path = directory / "tokenizer_config.json";
    ESPALIER_ASSIGN_OR_RETURN(
        const auto config_text,
        read_optional_text_file(config_path, text::VocabularyLimits::kFileBytes));
    ESPALIER_ASSIGN_OR_RETURN(const auto config,
                              text::parse_tokenizer_config(config_text, config_path.string()));
    ESPALIER_ASSIGN_OR_RETURN(const auto own_file, text::read_chat_template_file(directory));
    if (!own_file && config.chat_template.empty()) return std::nullopt;

    const std::string name = own_file ? (directory / "chat_template.jinja").string()
                                      : config_path.string() + ": chat_template";
    return compile(own_file ? *own_file : config.chat_template, config, name);
}

}  // namespace espalier::chat
