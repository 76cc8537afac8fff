// SPDX-License-Identifier: Apache-2.0
// The model that a server answers with, once it is loaded: names, limits, and the way from what a
// request says to tokens. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "chat/template.hpp"
#include "grammar/compiler.hpp"
#include "output/formats.hpp"
#include "runtime/runtime.hpp"
#include "server/generation_request.hpp"
#include "server/metrics.hpp"
#include "server/options.hpp"
#include "server/reply.hpp"

namespace espalier::server {

// A directory's own name, or ORG/NAME as it is.
std::string default_model_name(const std::string& model);

// Forms in which chats are written and read, as chosen for the model.
struct ChatForms {
    std::string chat_template;  // where it is from
    output::Formats formats;
};
Expected<ChatForms> chat_forms(const runtime::ModelFiles& files, const ServerOptions& options);

class ServedModel {
  public:
    // A template with its source, which shows what it reads.
    struct ChatTemplate {
        std::string source;
        chat::Template compiled;
    };
    // Template of the file, or the model's own where there is no path; none: it has none.
    static Expected<std::optional<ChatTemplate>> open_template(const runtime::ModelFiles& files,
                                                               const std::string& path);

    // The runtime outlives it.
    static Expected<std::shared_ptr<const ServedModel>> make(runtime::Runtime& runtime,
                                                             const ServerOptions& options);

    const std::string& name() const { return names_.front(); }
    const std::vector<std::string>& names() const { return names_; }
    // True of an empty name: a request without one means the only model there is.
    bool is_called(std::string_view name) const;
    std::int64_t created() const { return created_; }
    // Facts of what runs, for /v1/models, /metrics and the page.
    const ModelFacts& facts() const { return facts_; }
    engine::Engine& engine() const { return engine_; }
    grammar::CompilerStatus grammar_status() const { return compiler_->status(); }
    // None: all weights are in memory.
    std::optional<ExpertBytes> expert_bytes() const;
    // None: no trace is written.
    std::optional<trace::WriterStatus> trace_status() const { return runtime_.trace_status(); }
    // Since the engine's thread last came round; before it first does, since the model was ready.
    double heartbeat_age_seconds(const engine::EngineStatus& status) const;
    const text::Tokenizer& tokenizer() const { return *files_.tokenizer; }
    const checkpoint::GenerationDefaults& defaults() const {
        return files_.checkpoint->generation();
    }
    std::int64_t max_model_len() const { return engine_.request_limits().sizes.max_model_len; }

    // Tokens that the text has at least: none has more bytes than the longest.
    std::int64_t least_tokens(std::string_view text) const {
        return static_cast<std::int64_t>(text.size()) / longest_token_;
    }
    // A raw prompt; special tokens in it are taken, as tokenizers do. add_first: a text gets the
    // model's first token. `field` names it in errors.
    Expected<EchoedPrompt> encode(const PromptInput& input, bool add_first,
                                  const std::string& field) const;
    // A text alone. What cannot fit the context is refused before it is read.
    Expected<std::vector<std::int32_t>> encode_text(std::string_view text, bool add_first,
                                                    const std::string& field) const;
    // A text that is no prompt: special tokens in it are text.
    Expected<std::vector<std::int32_t>> encode_expected(std::string_view text,
                                                        const std::string& field) const;
    // Formats in which it writes reasoning and calls.
    const output::Formats& formats() const { return formats_; }
    // grammar::Compiler::compile; where `wanted` does not insist, what it says otherwise. A
    // refusal names the field, and of tools the function. done keeps both alive.
    void compile(const GrammarField& wanted, const ToolRequest& tools,
                 grammar::Compiler::Done done) const;
    // No grammar is compiled from now on; who waits for one is told.
    void stop_compiling() const { compiler_->stop(); }
    // A chat in the form of the model's template. What the template refuses is the request's fault.
    Expected<chat::Rendered> render(const ChatInput& chat) const;
    // Special tokens are taken where the template wrote them, not where a message has them.
    Expected<EchoedPrompt> encode(const chat::Rendered& rendered) const;
    // Prompts of other tenants or salts never share pages; 0: all requests that name neither.
    std::uint64_t salt_of(std::size_t tenant, std::string_view cache_salt) const;

  private:
    Expected<void> check_bytes(std::string_view text, const std::string& field) const;
    void compile_otherwise(const GrammarField& wanted, const ToolRequest& tools, Error first,
                           grammar::Compiler::Done done) const;
    void refuse(const GrammarField& wanted, const ToolRequest& tools, Error error,
                grammar::Compiler::Done done) const;
    void refuse_tools(const GrammarField& wanted, const ToolRequest& tools, std::size_t next,
                      Error whole, grammar::Compiler::Done done) const;
    struct Parts {
        std::vector<std::string> names;
        ModelFacts facts;
        std::optional<ChatTemplate> chat_template;
        output::Formats formats;
        std::unique_ptr<grammar::Compiler> compiler;
    };
    ServedModel(runtime::Runtime& runtime, Parts parts);
    nlohmann::ordered_json context_of(const ChatInput& chat) const;

    const runtime::Runtime& runtime_;
    const runtime::ModelFiles& files_;
    const runtime::LoadedModel& loaded_;
    engine::Engine& engine_;
    const std::vector<std::string> names_;
    const ModelFacts facts_;
    const std::optional<ChatTemplate> template_;  // none: the model has none
    const output::Formats formats_;
    const std::unique_ptr<grammar::Compiler> compiler_;
    const std::int64_t created_;
    const schedule::Time started_;    // on the engine's clock
    const std::string salt_key_;      // random, so that clients cannot choose salts that meet
    std::int64_t longest_token_ = 1;  // bytes
};

}  // namespace espalier::server
