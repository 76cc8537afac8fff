// SPDX-License-Identifier: Apache-2.0
#include "server/served_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>
#include <utility>

#include "base/mapped_file.hpp"

namespace espalier::server {
namespace {

std::string random_key() {
    std::random_device device;
    std::string key;
    for (int i = 0; i < 4; ++i) key += fmt::format("{:08x}", device());
    return key;
}

// From the file that --chat-template names, or the model's own.
Expected<std::optional<chat::Template>> open_template(const runtime::ModelFiles& files,
                                                      const std::string& path) {
    if (path.empty()) return chat::load_template(files.checkpoint->directory());
    ESPALIER_ASSIGN_OR_RETURN(const auto source,
                              read_optional_text_file(path, chat::Limits().source_bytes));
    if (!source) return fail_field(ErrorKind::not_found, "chat_template", "{}: no such file", path);
    auto compiled = chat::Template::compile(*source);
    if (!compiled)
        return fail_field(compiled.error().kind, "chat_template", "{}: {}", path,
                          compiled.error().message);
    const text::Tokenizer& tokenizer = *files.tokenizer;
    if (tokenizer.bos())
        compiled->define("bos_token", std::string(tokenizer.token_bytes(*tokenizer.bos())));
    if (tokenizer.eos())
        compiled->define("eos_token", std::string(tokenizer.token_bytes(*tokenizer.eos())));
    return std::optional<chat::Template>(std::move(*compiled));
}

}  // namespace

std::string default_model_name(const std::string& model) {
    namespace fs = std::filesystem;
    std::error_code failure;
    if (!fs::is_directory(model, failure)) return model;
    fs::path path = fs::weakly_canonical(model, failure);
    if (failure || path.filename().empty()) return model;
    return path.filename().string();
}

Expected<std::shared_ptr<const ServedModel>> ServedModel::make(runtime::Runtime& runtime,
                                                               const ServerOptions& options) {
    std::vector<std::string> names = options.served_model_name;
    if (names.empty()) names.push_back(default_model_name(runtime.files().name));
    ESPALIER_ASSIGN_OR_RETURN(auto chat_template,
                              open_template(runtime.files(), options.chat_template));
    return std::shared_ptr<const ServedModel>(new ServedModel(
        runtime.files(), runtime.engine(), std::move(names), std::move(chat_template)));
}

ServedModel::ServedModel(const runtime::ModelFiles& files, engine::Engine& engine,
                         std::vector<std::string> names,
                         std::optional<chat::Template> chat_template)
    : files_(files),
      engine_(engine),
      names_(std::move(names)),
      template_(std::move(chat_template)),
      created_(std::time(nullptr)),
      started_(engine.now()),
      salt_key_(random_key()) {
    for (std::int32_t id = 0; id < files.tokenizer->vocabulary(); ++id)
        longest_token_ = std::max(
            longest_token_, static_cast<std::int64_t>(files.tokenizer->token_bytes(id).size()));
}

double ServedModel::heartbeat_age_seconds(const engine::EngineStatus& status) const {
    return static_cast<double>(engine_.now() - std::max(status.heartbeat, started_)) * 1e-9;
}

bool ServedModel::is_called(std::string_view name) const {
    return name.empty() || std::ranges::find(names_, name) != names_.end();
}

Expected<void> ServedModel::check_bytes(std::string_view text, const std::string& field) const {
    const auto bytes = static_cast<std::int64_t>(text.size());
    if (bytes / longest_token_ > max_model_len())
        return fail_field(ErrorKind::invalid, field,
                          "{} bytes are {} tokens at least; prompt and output together may have {}",
                          bytes, bytes / longest_token_, max_model_len());
    return {};
}

Expected<std::vector<std::int32_t>> ServedModel::encode_text(std::string_view text, bool add_first,
                                                             const std::string& field) const {
    ESPALIER_RETURN_IF_ERROR(check_bytes(text, field));
    Expected<std::vector<std::int32_t>> tokens =
        add_first ? files_.encode_prompt(text, text::SpecialTokens::parsed)
                  : tokenizer().encode(text, text::SpecialTokens::parsed);
    if (!tokens) return tl::unexpected<Error>(with_field(std::move(tokens.error()), field));
    return tokens;
}

Expected<EchoedPrompt> ServedModel::encode(const PromptInput& input,
                                           const std::string& field) const {
    EchoedPrompt prompt;
    if (const auto* text = std::get_if<std::string>(&input)) {
        prompt.text = *text;
        ESPALIER_ASSIGN_OR_RETURN(prompt.tokens, encode_text(*text, true, field));
        prompt.added = tokenizer().bos() ? 1 : 0;
        return prompt;
    }
    // The engine checks the ids; text is made of those that it would take.
    prompt.tokens = std::get<std::vector<std::int32_t>>(input);
    const std::int64_t vocabulary = tokenizer().vocabulary();
    if (std::ranges::all_of(prompt.tokens, [&](std::int32_t id) { return id < vocabulary; }))
        prompt.text = tokenizer().decode(prompt.tokens, false);
    return prompt;
}

Expected<chat::Rendered> ServedModel::render(const ChatInput& chat) const {
    if (!template_)
        return fail_field(ErrorKind::unsupported, "messages",
                          "this model has no chat template; use /v1/completions, or start the "
                          "server with --chat-template");
    nlohmann::json context = chat.arguments;
    context["messages"] = chat.messages;
    context["add_generation_prompt"] = chat.add_generation_prompt;
    context["tools"] = nullptr;
    auto rendered = template_->render(context);
    if (!rendered)
        return fail_field(ErrorKind::invalid, "messages", "{}", rendered.error().message);
    return rendered;
}

Expected<EchoedPrompt> ServedModel::encode(const ChatInput& chat) const {
    ESPALIER_ASSIGN_OR_RETURN(const chat::Rendered rendered, render(chat));
    ESPALIER_RETURN_IF_ERROR(check_bytes(rendered.text, "messages"));
    EchoedPrompt prompt;
    ESPALIER_ASSIGN_OR_RETURN(prompt.tokens, chat::encode(tokenizer(), rendered));
    return prompt;
}

std::uint64_t ServedModel::salt_of(std::size_t tenant, std::string_view cache_salt) const {
    if (tenant <= 1 && cache_salt.empty()) return 0;
    const std::string whole = fmt::format("{}:{}:{}", salt_key_, tenant, cache_salt);
    return std::max<std::uint64_t>(1, std::hash<std::string>()(whole));
}

}  // namespace espalier::server
