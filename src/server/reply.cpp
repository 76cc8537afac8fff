// SPDX-License-Identifier: Apache-2.0
#include "server/reply.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/speculation_report.hpp"

namespace espalier::server {
namespace {

using accept::FinishReason;

std::string dump(const OrderedJson& json) {
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson text_or_null(const char* text) {
    return text == nullptr ? OrderedJson() : OrderedJson(text);
}

// Null: not one that a client is told as a reason.
const char* finish_reason(FinishReason reason) {
    switch (reason) {
        case FinishReason::eos:
        case FinishReason::stop_token:
        case FinishReason::stop_string:
            return "stop";
        case FinishReason::length:
            return "length";
        case FinishReason::bad_numbers:
        case FinishReason::nothing_left:
        case FinishReason::interrupted:
            return nullptr;
    }
    return nullptr;
}

}  // namespace

Reply::Reply(ReplyOptions options, const text::Tokenizer& tokenizer,
             std::vector<EchoedPrompt> prompts)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      prompts_(std::move(prompts)),
      prompt_logprobs_(prompts_.size()),
      choices_(prompts_.size() * static_cast<std::size_t>(options_.choices)) {
    if (!options_.parser.parses()) return;
    for (Choice& choice : choices_) choice.parser.emplace(options_.parser);
}

// ---- what comes of the engine -------------------------------------------------------------------

void Reply::add(std::size_t prompt, const engine::Updates& updates, std::string& out) {
    if (updates.prompt_logprobs) prompt_logprobs_[prompt] = updates.prompt_logprobs;
    for (std::size_t i = 0; i < updates.choices.size(); ++i)
        add_choice(prompt * updates.choices.size() + i, updates.choices[i], out);
}

void Reply::add_choice(std::size_t index, const engine::ChoiceUpdate& update, std::string& out) {
    Choice& choice = choices_[index];
    const accept::Emission& emission = update.emission;
    if (choice.ended || (emission.tokens.empty() && emission.text.empty() && !update.ended)) return;
    choice.usage = update.usage;
    choice.cached_tokens = update.cached_tokens;
    std::string text;
    const std::size_t prompt = index / static_cast<std::size_t>(options_.choices);
    if (options_.echo && !std::exchange(choice.echoed, true)) echo_prompt(prompt, choice, text);
    text += emission.text;
    if (keeps_text() && !choice.parser) choice.text += emission.text;
    if (options_.logprobs) add_logprobs(prompt, choice, emission);
    if (options_.token_ids)
        for (const accept::CommittedToken& token : emission.tokens)
            choice.tokens.push_back(token.token);
    if (options_.speculation) {
        for (OrderedJson& source :
             text_sources(emission.text, choice.output_bytes, emission.tokens, options_.drafters))
            choice.sources.push_back(std::move(source));
        engine::append_trees(choice.trees, update.trees);
    }
    choice.output_bytes += static_cast<std::int64_t>(emission.text.size());
    if (update.ended) {
        choice.ended = true;
        ++ended_;
        choice.finish = finish_reason(update.finish.reason);
        if (choice.finish == nullptr && !failure_) failure_ = failure_of(update);
    }
    if (choice.parser) add_parts(index, update, out);
    if (!options_.stream || failure_) return;
    const bool is_last = update.ended && !chat();
    const bool has_news = options_.logprobs && !emission.tokens.empty();
    if (!choice.parser && (!text.empty() || has_news || is_last))
        choice_event(index,
                     chat() ? OrderedJson{{"delta", {{"content", std::move(text)}}}}
                            : OrderedJson{{"text", std::move(text)}},
                     is_last ? choice.finish : nullptr, out);
    if (!update.ended || !chat()) return;
    tell_role(index, out);
    OrderedJson last = {{"index", index},
                        {"delta", OrderedJson::object()},
                        {"logprobs", nullptr},
                        {"finish_reason", choice.finish}};
    add_speculation(choice, true, last);
    add_tokens(index, last);
    event(std::move(last), out);
}

// New figures of speculation; with the output's end its totals too.
void Reply::add_speculation(Choice& choice, bool with_totals, OrderedJson& told) const {
    if (!options_.speculation) return;
    OrderedJson trees = OrderedJson::array();
    for (const engine::VerifiedTree& tree : choice.trees)
        trees.push_back(tree_report(tree, tokenizer_, options_.drafters));
    choice.trees.clear();
    OrderedJson report = {{"tokens", std::exchange(choice.sources, OrderedJson::array())},
                          {"trees", std::move(trees)}};
    if (with_totals)
        report.update(speculation_totals(choice.usage, options_.drafters, options_.drafter_states));
    told["speculation"] = std::move(report);
}

// The text of an echoed prompt stands before the output's, so that offsets count it too.
void Reply::echo_prompt(std::size_t prompt, Choice& choice, std::string& text) {
    const EchoedPrompt& echoed = prompts_[prompt];
    text = echoed.text;
    if (keeps_text()) choice.text = echoed.text;
    const auto& known = prompt_logprobs_[prompt];
    if (!options_.logprobs || !known) return;
    const auto all = static_cast<std::size_t>(known->top_count());
    const auto count = std::min(all, static_cast<std::size_t>(options_.top_logprobs));
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < echoed.tokens.size(); ++i) {
        ScoredToken scored{.token = echoed.tokens[i],
                           .logprob = std::nullopt,
                           .text_offset = choice.points.upto(choice.text, bytes)};
        if (i > 0) {
            scored.logprob = known->logprobs()[i - 1];
            scored.top = known->tops().subspan((i - 1) * all, count);
        }
        choice.lists.add(tokenizer_, scored);
        if (i >= static_cast<std::size_t>(echoed.added))
            bytes += static_cast<std::int64_t>(tokenizer_.token_bytes(scored.token).size());
    }
}

void Reply::add_logprobs(std::size_t prompt, Choice& choice, const accept::Emission& emission) {
    const std::size_t count = emission.tokens.size();
    const std::size_t top = count == 0 ? 0 : emission.top.size() / count;
    const auto before = options_.echo ? static_cast<std::int64_t>(prompts_[prompt].text.size()) : 0;
    for (std::size_t i = 0; i < count; ++i) {
        const accept::CommittedToken& token = emission.tokens[i];
        ScoredToken scored{.token = token.token,
                           .logprob = token.logprob,
                           .top = std::span(emission.top).subspan(i * top, top)};
        if (chat()) {
            choice.chat_logprobs.push_back(chat_logprob(tokenizer_, scored));
            continue;
        }
        scored.text_offset = choice.points.upto(choice.text, before + token.text_offset);
        choice.lists.add(tokenizer_, scored);
    }
}

// Logprobs of tokens since the last time; null: there are none, or none are wanted.
OrderedJson Reply::take_logprobs(Choice& choice) {
    if (!options_.logprobs) return nullptr;
    if (!chat()) return choice.lists.empty() ? OrderedJson() : choice.lists.take();
    if (choice.chat_logprobs.empty()) return nullptr;
    return {{"content", std::exchange(choice.chat_logprobs, OrderedJson::array())},
            {"refusal", nullptr}};
}

// ---- the parts of a text ------------------------------------------------------------------------

void Reply::add_parts(std::size_t index, const engine::ChoiceUpdate& update, std::string& out) {
    Choice& choice = choices_[index];
    std::vector<output::Event> events;
    choice.parser->push(update.emission.text, events);
    if (update.ended) choice.parser->finish(events);
    if (choice.parser->calls() > 0 && choice.finish != nullptr &&
        std::string_view(choice.finish) == "stop")
        choice.finish = "tool_calls";
    if (failure_) return;
    for (const output::Event& event : events) {
        if (options_.stream)
            choice_event(index, {{"delta", part_delta(index, event)}}, nullptr, out);
        else
            keep_part(choice, index, event);
    }
    // Tokens whose text waits, or is markup.
    if (options_.stream && events.empty() && options_.logprobs && !update.emission.tokens.empty())
        choice_event(index, {{"delta", {{"content", ""}}}}, nullptr, out);
}

// The model's own, or one that no other answer has.
std::string Reply::call_id(std::size_t index, std::size_t call, const output::Event& event) const {
    if (!event.id.empty()) return event.id;
    return fmt::format("call_{}{:02x}{:02x}", options_.id.substr(options_.id.find('-') + 1), index,
                       call);
}

OrderedJson Reply::part_delta(std::size_t index, const output::Event& event) {
    Choice& choice = choices_[index];
    switch (event.kind) {
        case output::Event::Kind::reasoning:
            return {{"reasoning_content", event.text}, {"reasoning", event.text}};
        case output::Event::Kind::content:
            return {{"content", event.text}};
        case output::Event::Kind::call_begin:
            ++choice.calls_begun;
            break;
        case output::Event::Kind::arguments:
            break;
    }
    const std::size_t call = choice.calls_begun - 1;
    OrderedJson told = {{"index", call}};
    if (event.kind == output::Event::Kind::call_begin) {
        told["id"] = call_id(index, call, event);
        told["type"] = "function";
        told["function"] = {{"name", event.text}, {"arguments", ""}};
    } else {
        told["function"] = {{"arguments", event.text}};
    }
    return {{"tool_calls", OrderedJson::array({std::move(told)})}};
}

void Reply::keep_part(Choice& choice, std::size_t index, const output::Event& event) const {
    switch (event.kind) {
        case output::Event::Kind::reasoning:
            choice.reasoning += event.text;
            break;
        case output::Event::Kind::content:
            choice.text += event.text;
            break;
        case output::Event::Kind::call_begin:
            choice.calls.push_back(
                {call_id(index, choice.calls.size(), event), event.text, std::string()});
            break;
        case output::Event::Kind::arguments:
            choice.calls.back().arguments += event.text;
            break;
    }
}

OrderedJson Reply::message(Choice& choice) const {
    OrderedJson made = {{"role", "assistant"}, {"content", std::move(choice.text)}};
    if (!choice.calls.empty() && made["content"] == "") made["content"] = nullptr;
    made["refusal"] = nullptr;
    if (options_.parser.reasoning_open) {
        made["reasoning_content"] = choice.reasoning;
        made["reasoning"] = std::move(choice.reasoning);
    }
    for (Call& call : choice.calls)
        made["tool_calls"].push_back(
            {{"id", std::move(call.id)},
             {"type", "function"},
             {"function",
              {{"name", std::move(call.name)}, {"arguments", std::move(call.arguments)}}}});
    return made;
}

// ---- bytes --------------------------------------------------------------------------------------

OrderedJson Reply::envelope(const char* object) const {
    return {{"id", options_.id},
            {"object", object},
            {"created", options_.created},
            {"model", options_.model}};
}

void Reply::event(OrderedJson choice, std::string& out) {
    OrderedJson chunk = envelope(chat() ? "chat.completion.chunk" : "text_completion");
    if (chat() && !std::exchange(choices_.front().prompt_told, true)) add_prompt(0, chunk);
    chunk["choices"] = OrderedJson::array({std::move(choice)});
    if (options_.include_usage) chunk["usage"] = nullptr;
    out += sse_event(dump(chunk));
}

void Reply::choice_event(std::size_t index, OrderedJson choice, const char* finish,
                         std::string& out) {
    Choice& told = choices_[index];
    tell_role(index, out);
    OrderedJson made = {{"index", index}};
    made.update(choice);
    made["logprobs"] = take_logprobs(told);
    made["finish_reason"] = text_or_null(finish);
    add_speculation(told, finish != nullptr, made);
    add_tokens(index, made);
    event(std::move(made), out);
}

void Reply::add_tokens(std::size_t index, OrderedJson& told) {
    Choice& choice = choices_[index];
    if (!chat() && !std::exchange(choice.prompt_told, true))
        add_prompt(index / static_cast<std::size_t>(options_.choices), told);
    if (options_.token_ids)
        told["token_ids"] = std::exchange(choice.tokens, std::vector<std::int32_t>());
}

void Reply::add_prompt(std::size_t prompt, OrderedJson& told) const {
    const std::vector<std::int32_t>& tokens = prompts_[prompt].tokens;
    if (options_.token_ids) told["prompt_token_ids"] = tokens;
    const auto& known = prompt_logprobs_[prompt];
    if (options_.prompt_logprobs && known)
        told["prompt_logprobs"] =
            prompt_logprobs(tokenizer_, tokens, *known, *options_.prompt_logprobs);
}

void Reply::tell_role(std::size_t index, std::string& out) {
    if (!chat() || std::exchange(choices_[index].role_told, true)) return;
    event({{"index", index},
           {"delta", {{"role", "assistant"}, {"content", ""}}},
           {"logprobs", nullptr},
           {"finish_reason", nullptr}},
          out);
}

// A prompt is counted once, whatever the number of its choices.
OrderedJson Reply::usage() const {
    accept::Usage sum;
    std::int64_t cached = 0;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        const Choice& choice = choices_[i];
        if (i % static_cast<std::size_t>(options_.choices) == 0) {
            sum.prompt_tokens += choice.usage.prompt_tokens;
            cached += choice.cached_tokens;
        }
        sum.completion_tokens += choice.usage.completion_tokens;
        sum.reasoning_tokens += choice.usage.reasoning_tokens;
        sum.drafted += choice.usage.drafted;
        sum.accepted += choice.usage.accepted;
    }
    return {{"prompt_tokens", sum.prompt_tokens},
            {"completion_tokens", sum.completion_tokens},
            {"total_tokens", sum.prompt_tokens + sum.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", cached}}},
            {"completion_tokens_details",
             {{"reasoning_tokens", sum.reasoning_tokens},
              {"accepted_prediction_tokens", sum.accepted},
              {"rejected_prediction_tokens", sum.drafted - sum.accepted}}}};
}

std::string Reply::whole() {
    OrderedJson object = envelope(chat() ? "chat.completion" : "text_completion");
    OrderedJson list = OrderedJson::array();
    for (std::size_t index = 0; index < choices_.size(); ++index) {
        Choice& choice = choices_[index];
        OrderedJson one = {{"index", index}};
        if (chat())
            one["message"] = message(choice);
        else
            one["text"] = std::move(choice.text);
        one["logprobs"] = take_logprobs(choice);
        one["finish_reason"] = text_or_null(choice.finish);
        add_speculation(choice, true, one);
        add_tokens(index, one);
        list.push_back(std::move(one));
    }
    if (chat()) add_prompt(0, object);
    object["choices"] = std::move(list);
    object["usage"] = usage();
    object["seed"] = options_.seed;
    return dump(object);
}

void Reply::end(std::string& out) {
    if (!options_.stream) {
        out += whole();
        return;
    }
    if (options_.include_usage) {
        OrderedJson chunk = envelope(chat() ? "chat.completion.chunk" : "text_completion");
        chunk["choices"] = OrderedJson::array();
        chunk["usage"] = usage();
        chunk["seed"] = options_.seed;
        out += sse_event(dump(chunk));
    }
    out += kSseDone;
}

}  // namespace espalier::server
