// SPDX-License-Identifier: Apache-2.0
// The answers of /v1/completions and /v1/chat/completions, as OpenAI's clients read them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "output/parser.hpp"
#include "server/api/reply_writer.hpp"
#include "server/generation_request.hpp"
#include "server/logprobs.hpp"
#include "text/tokenizer.hpp"

namespace espalier::server {

inline constexpr const char* kSseDone = "data: [DONE]\n\n";

struct ReplyOptions {
    Api api = Api::completions;
    std::string id;            // cmpl-… or chatcmpl-…
    std::int64_t created = 0;  // seconds since 1970
    std::string model;
    bool stream = false;
    bool include_usage = false;
    bool logprobs = false;
    bool echo = false;
    bool token_ids = false;                       // of prompt and output, vLLM's return_token_ids
    std::int32_t top_logprobs = 0;                // alternatives of an echoed prompt's tokens
    std::optional<std::int32_t> prompt_logprobs;  // the same in vLLM's form; none: not wanted
    bool speculation = false;                     // what drafts did is told, under these names
    std::vector<std::string> drafters = {};
    std::vector<std::string_view> drafter_states = {};  // when the request began
    output::ParserOptions parser = {};                  // of chats: what their texts are made of
    std::int32_t choices = 1;                           // per prompt
    std::uint64_t seed = 0;
};

// A prompt as it was sent, for echo, its tokens and its logprobs.
struct EchoedPrompt {
    std::vector<std::int32_t> tokens;
    std::string text;
    std::int32_t added = 0;  // tokens at the beginning that the text does not have
};

class Reply final : public ReplyWriter {
  public:
    // The tokenizer outlives the reply. prompts: as many as were sent; filled in only where the
    // answer tells of them.
    Reply(ReplyOptions options, const text::Tokenizer& tokenizer,
          std::vector<EchoedPrompt> prompts);

    void add(std::size_t prompt, const engine::Updates& updates, std::string& out) override;
    bool complete() const override { return ended_ == choices_.size(); }
    const std::optional<ApiError>& failure() const override { return failure_; }
    void end(std::string& out) override;
    std::string failed(const ApiError& error) override {
        return sse_event(error_json(error)) + kSseDone;
    }

  private:
    struct Call {
        std::string id, name, arguments;
    };
    struct Choice {
        std::string text;  // all of it, or of a parsed text its content, where it is needed
        std::optional<output::Parser> parser;
        std::string reasoning;    // all of it, where it is not streamed
        std::vector<Call> calls;  // likewise
        std::size_t calls_begun = 0;
        CodePointCounter points;
        CompletionLogprobs lists;
        OrderedJson chat_logprobs = OrderedJson::array();
        std::vector<std::int32_t> tokens;            // that were not told yet
        OrderedJson sources = OrderedJson::array();  // of text that was not told yet
        std::vector<engine::VerifiedTree> trees;     // of steps that were not told yet
        std::int64_t output_bytes = 0;               // of text so far, without an echoed prompt
        bool role_told = false;
        bool echoed = false;
        bool prompt_told = false;  // its tokens
        bool ended = false;
        const char* finish = nullptr;
        accept::Usage usage;
        std::int64_t cached_tokens = 0;
    };

    bool chat() const { return options_.api == Api::chat; }
    bool keeps_text() const { return !options_.stream || options_.logprobs; }
    void echo_prompt(std::size_t prompt, Choice& choice, std::string& text);
    void add_logprobs(std::size_t prompt, Choice& choice, const accept::Emission& emission);
    void add_choice(std::size_t index, const engine::ChoiceUpdate& update, std::string& out);
    OrderedJson take_logprobs(Choice& choice);
    void add_speculation(Choice& choice, bool with_totals, OrderedJson& told) const;
    // Tokens of a choice since the last time, and what is told of its prompt: with completions in
    // the choice, in chats beside them.
    void add_tokens(std::size_t index, OrderedJson& told);
    void add_prompt(std::size_t prompt, OrderedJson& told) const;
    OrderedJson envelope(const char* object) const;
    void event(OrderedJson choice, std::string& out);
    // A chat's stream names the role with a choice's first output and not before: load clients take
    // the first event for the first token.
    void tell_role(std::size_t index, std::string& out);
    // An event of what is new in a choice; logprobs and drafts that were not told yet go with it.
    void choice_event(std::size_t index, OrderedJson choice, const char* finish, std::string& out);
    // A text's parts: told by events, or kept.
    void add_parts(std::size_t index, const engine::ChoiceUpdate& update, std::string& out);
    OrderedJson part_delta(std::size_t index, const output::Event& event);
    void keep_part(Choice& choice, std::size_t index, const output::Event& event) const;
    std::string call_id(std::size_t index, std::size_t call, const output::Event& event) const;
    OrderedJson message(Choice& choice) const;
    OrderedJson usage() const;
    std::string whole();

    ReplyOptions options_;
    const text::Tokenizer& tokenizer_;
    std::vector<EchoedPrompt> prompts_;
    std::vector<std::optional<accept::PromptLogprobs>> prompt_logprobs_;  // by prompt
    std::vector<Choice> choices_;  // [prompts, choices per prompt]
    std::size_t ended_ = 0;
    std::optional<ApiError> failure_;
};

}  // namespace espalier::server
