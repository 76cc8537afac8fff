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
#include "cache/page.hpp"
#include "checkpoint/quantization.hpp"
#include "runtime/grammars.hpp"
#include "runtime/identity.hpp"
#include "server/final_message.hpp"

namespace espalier::server {
namespace {

std::string random_key() {
    std::random_device device;
    std::string key;
    for (int i = 0; i < 4; ++i) key += fmt::format("{:08x}", device());
    return key;
}

tl::unexpected<Error> refused(const Error& error, const std::string& field,
                              const std::string& advice = {}) {
    if (advice.empty() || error.kind == ErrorKind::exhausted)
        return fail_field(error.kind, field, "{}", error.message);
    return fail_field(error.kind, field, "{}; {}", error.message, advice);
}

Expected<ModelFacts> facts_of(const runtime::LoadedModel& loaded, const EngineSizes& sizes) {
    const checkpoint::Checkpoint& checkpoint = *loaded.checkpoint;
    const checkpoint::ModelConfig& config = checkpoint.config();
    ESPALIER_ASSIGN_OR_RETURN(
        const TextIdentity identity,
        runtime::identity_without_model(checkpoint, loaded.identity_options(), 0));
    const auto projection =
        checkpoint::find_weight(checkpoint, "model.layers.0.self_attn.o_proj", config.hidden_size,
                                config.num_attention_heads * config.v_head_dim);
    std::string weights;
    if (projection) weights = checkpoint::name_of(projection->weights.type);
    if (loaded.rounding) weights = identity.weights;
    return ModelFacts{.name = {},
                      .architecture = std::string(checkpoint::name_of(config.architecture)),
                      .weights = weights,
                      .kv_format = identity.kv_format,
                      .backend = identity.backend,
                      .variant = identity.variant,
                      .max_model_len = sizes.max_model_len,
                      .page_tokens = cache::kPageTokens,
                      .pages = sizes.page_count - 1};
}

constexpr const char* kThinking[] = {"thinking", "enable_thinking"};

}  // namespace

std::string default_model_name(const std::string& model) {
    namespace fs = std::filesystem;
    std::error_code failure;
    if (!fs::is_directory(model, failure)) return model;
    fs::path path = fs::weakly_canonical(model, failure);
    if (failure || path.filename().empty()) return model;
    return path.filename().string();
}

Expected<std::optional<ServedModel::ChatTemplate>> ServedModel::open_template(
    const runtime::ModelFiles& files, const std::string& path) {
    const text::Tokenizer& tokenizer = *files.tokenizer;
    if (path.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(auto own, chat::load_template(files.checkpoint->directory()));
        if (!own) return std::optional<ChatTemplate>();
        return std::optional<ChatTemplate>({tokenizer.chat_template(), std::move(*own)});
    }
    ESPALIER_ASSIGN_OR_RETURN(auto source,
                              read_optional_text_file(path, chat::Limits().source_bytes));
    if (!source) return fail_field(ErrorKind::not_found, "chat_template", "{}: no such file", path);
    auto compiled = chat::Template::compile(*source);
    if (!compiled)
        return fail_field(compiled.error().kind, "chat_template", "{}: {}", path,
                          compiled.error().message);
    if (tokenizer.bos())
        compiled->define("bos_token", std::string(tokenizer.token_bytes(*tokenizer.bos())));
    if (tokenizer.eos())
        compiled->define("eos_token", std::string(tokenizer.token_bytes(*tokenizer.eos())));
    return std::optional<ChatTemplate>({std::move(*source), std::move(*compiled)});
}

Expected<ChatForms> chat_forms(const runtime::ModelFiles& files, const ServerOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const auto opened,
                              ServedModel::open_template(files, options.chat_template));
    ChatForms forms;
    forms.chat_template = !opened ? "refused: the model has no template"
                          : options.chat_template.empty()
                              ? "the model's own template"
                              : "the template in " + options.chat_template;
    ESPALIER_ASSIGN_OR_RETURN(
        forms.formats,
        output::formats_of(options.tool_format, options.reasoning_format,
                           opened ? opened->source : std::string(), *files.tokenizer));
    return forms;
}

Expected<std::shared_ptr<const ServedModel>> ServedModel::make(runtime::Runtime& runtime,
                                                               const ServerOptions& options) {
    const runtime::ModelFiles& files = runtime.files();
    Parts parts;
    parts.names = options.served_model_name;
    if (parts.names.empty()) parts.names.push_back(default_model_name(files.name));
    ESPALIER_ASSIGN_OR_RETURN(parts.chat_template, open_template(files, options.chat_template));
    ESPALIER_ASSIGN_OR_RETURN(
        parts.formats,
        output::formats_of(options.tool_format, options.reasoning_format,
                           parts.chat_template ? parts.chat_template->source : std::string(),
                           *files.tokenizer));
    ESPALIER_ASSIGN_OR_RETURN(parts.compiler, runtime::make_grammar_compiler(files));
    ESPALIER_ASSIGN_OR_RETURN(parts.facts,
                              facts_of(runtime.loaded(), runtime.engine().request_limits().sizes));
    parts.facts.name = parts.names.front();
    return std::shared_ptr<const ServedModel>(new ServedModel(runtime, std::move(parts)));
}

ServedModel::ServedModel(runtime::Runtime& runtime, Parts parts)
    : runtime_(runtime),
      files_(runtime.files()),
      loaded_(runtime.loaded()),
      engine_(runtime.engine()),
      names_(std::move(parts.names)),
      facts_(std::move(parts.facts)),
      template_(std::move(parts.chat_template)),
      formats_(parts.formats),
      compiler_(std::move(parts.compiler)),
      created_(std::time(nullptr)),
      started_(engine_.now()),
      salt_key_(random_key()) {
    for (std::int32_t id = 0; id < tokenizer().vocabulary(); ++id)
        longest_token_ =
            std::max(longest_token_, static_cast<std::int64_t>(tokenizer().token_bytes(id).size()));
}

std::optional<ExpertBytes> ServedModel::expert_bytes() const {
    if (!loaded_.expert_reads) return std::nullopt;
    return ExpertBytes{.needed = loaded_.expert_reads->needed.load(),
                       .in_memory = loaded_.expert_reads->in_memory.load()};
}

double ServedModel::heartbeat_age_seconds(const engine::EngineStatus& status) const {
    return static_cast<double>(engine_.now() - std::max(status.heartbeat, started_)) * 1e-9;
}

bool ServedModel::is_called(std::string_view name) const {
    return name.empty() || std::ranges::find(names_, name) != names_.end();
}

Expected<void> ServedModel::check_bytes(std::string_view text, const std::string& field) const {
    if (least_tokens(text) > max_model_len())
        return fail_field(ErrorKind::invalid, field,
                          "{} bytes are {} tokens at least; prompt and output together may have {}",
                          text.size(), least_tokens(text), max_model_len());
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

Expected<std::vector<std::int32_t>> ServedModel::encode_expected(std::string_view text,
                                                                 const std::string& field) const {
    ESPALIER_RETURN_IF_ERROR(check_bytes(text, field));
    auto tokens = tokenizer().encode(text, text::SpecialTokens::as_text);
    if (!tokens) return tl::unexpected<Error>(with_field(std::move(tokens.error()), field));
    return tokens;
}

Expected<EchoedPrompt> ServedModel::encode(const PromptInput& input, bool add_first,
                                           const std::string& field) const {
    EchoedPrompt prompt;
    if (const auto* text = std::get_if<std::string>(&input)) {
        prompt.text = *text;
        ESPALIER_ASSIGN_OR_RETURN(prompt.tokens, encode_text(*text, add_first, field));
        prompt.added = add_first && tokenizer().bos() ? 1 : 0;
        return prompt;
    }
    // The engine checks the ids; text is made of those that it would take.
    prompt.tokens = std::get<std::vector<std::int32_t>>(input);
    const std::int64_t vocabulary = tokenizer().vocabulary();
    if (std::ranges::all_of(prompt.tokens, [&](std::int32_t id) { return id < vocabulary; }))
        prompt.text = tokenizer().decode(prompt.tokens, false);
    return prompt;
}

// Context for the template. A request may ask for reasoning by either name; it goes by the one that
// the template has.
nlohmann::ordered_json ServedModel::context_of(const ChatInput& chat) const {
    nlohmann::ordered_json context = chat.arguments;
    const std::string& source = template_->source;
    for (const char* asked : kThinking)
        for (const char* read : kThinking)
            if (chat.arguments.contains(asked) && !output::template_reads(source, asked) &&
                output::template_reads(source, read))
                context[read] = chat.arguments[asked];
    if (!chat.reasoning_effort.empty()) context["reasoning_effort"] = chat.reasoning_effort;
    context["messages"] = chat.messages;
    context["add_generation_prompt"] = chat.add_generation_prompt;
    context["tools"] = chat.tools.declared;
    return context;
}

Expected<chat::Rendered> ServedModel::render(const ChatInput& chat) const {
    if (!template_)
        return fail_field(ErrorKind::unsupported, "messages",
                          "this model has no chat template; use /v1/completions, or start the "
                          "server with --chat-template");
    if (!chat.tools.functions.empty() && !output::template_reads(template_->source, "tools"))
        return fail_field(ErrorKind::unsupported, "tools",
                          "this model's chat template does not take them; --chat-template names "
                          "another");
    nlohmann::ordered_json context = context_of(chat);
    if (formats_.tools != nullptr && formats_.tools->has_pairs())
        ESPALIER_RETURN_IF_ERROR(parse_call_arguments(context["messages"]));
    auto rendered = template_->compiled.render(context);
    if (!rendered)
        return fail_field(ErrorKind::invalid, "messages", "the chat template, {}",
                          rendered.error().message);
    if (chat.continues_final) return cut_behind_final_message(std::move(*rendered), chat.messages);
    return rendered;
}

Expected<EchoedPrompt> ServedModel::encode(const chat::Rendered& rendered) const {
    ESPALIER_RETURN_IF_ERROR(check_bytes(rendered.text, "messages"));
    EchoedPrompt prompt;
    ESPALIER_ASSIGN_OR_RETURN(prompt.tokens, chat::encode(tokenizer(), rendered));
    return prompt;
}

void ServedModel::compile(const GrammarField& wanted, const ToolRequest& tools,
                          grammar::Compiler::Done done) const {
    compiler_->compile(wanted.specification, [this, &wanted, &tools, done = std::move(done)](
                                                 grammar::Compiled compiled) mutable {
        if (compiled) return done(std::move(compiled));
        Error error = std::move(compiled.error());
        if (error.kind == ErrorKind::exhausted) return done(refused(error, wanted.field));
        if (wanted.otherwise)
            return compile_otherwise(wanted, tools, std::move(error), std::move(done));
        refuse(wanted, tools, std::move(error), std::move(done));
    });
}

void ServedModel::compile_otherwise(const GrammarField& wanted, const ToolRequest& tools,
                                    Error first, grammar::Compiler::Done done) const {
    compiler_->compile(*wanted.otherwise,
                       [this, &wanted, &tools, first = std::move(first),
                        done = std::move(done)](grammar::Compiled compiled) mutable {
                           if (compiled) return done(std::move(compiled));
                           if (compiled.error().kind == ErrorKind::exhausted)
                               return done(refused(compiled.error(), wanted.field));
                           refuse(wanted, tools, std::move(first), std::move(done));
                       });
}

void ServedModel::refuse(const GrammarField& wanted, const ToolRequest& tools, Error error,
                         grammar::Compiler::Done done) const {
    if (wanted.field != "tools") return done(refused(error, wanted.field, wanted.advice));
    refuse_tools(wanted, tools, 0, std::move(error), std::move(done));
}

// By the first function, from `next` on, that insists on its schema and is refused alone; otherwise
// all together.
void ServedModel::refuse_tools(const GrammarField& wanted, const ToolRequest& tools,
                               std::size_t next, Error whole, grammar::Compiler::Done done) const {
    while (next < tools.functions.size() && tools.functions[next].strict != true) ++next;
    if (next == tools.functions.size()) return done(refused(whole, "tools", wanted.advice));
    compiler_->compile(
        {.kind = grammar::Kind::json_schema, .text = tools.functions[next].schema().dump()},
        [this, &wanted, &tools, next, whole = std::move(whole),
         done = std::move(done)](grammar::Compiled alone) mutable {
            if (alone)
                return refuse_tools(wanted, tools, next + 1, std::move(whole), std::move(done));
            done(refused(alone.error(), fmt::format("tools[{}].function.parameters", next),
                         wanted.advice));
        });
}

std::uint64_t ServedModel::salt_of(std::size_t tenant, std::string_view cache_salt) const {
    if (tenant <= 1 && cache_salt.empty()) return 0;
    const std::string whole = fmt::format("{}:{}:{}", salt_key_, tenant, cache_salt);
    return std::max<std::uint64_t>(1, std::hash<std::string>()(whole));
}

}  // namespace espalier::server
