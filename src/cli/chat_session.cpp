// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_session.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <utility>
#include <vector>

namespace espalier::cli {
namespace {

using client::Failure;
using client::FailureKind;
using client::Verdict;
using Json = nlohmann::ordered_json;

// An answer ends with the model's context; a server that goes on for this long does not.
constexpr std::int64_t kMaxPieces = 1 << 24;

class Listener final : public client::CallListener {
  public:
    Listener(client::HttpClient& client, const std::function<void(std::string_view)>& show)
        : client_(client), show_(show), asked_(client.now()) {}

    void on_status(int status) override { reader_.begin(status); }
    Verdict on_bytes(std::string_view bytes) override {
        std::vector<std::string> pieces;
        answer_.failure = reader_.push(bytes, pieces);
        for (const std::string& piece : pieces) add(piece);
        if (answer_.failure || reader_.done()) return Verdict::enough;
        return pieces.empty() ? Verdict::waiting : Verdict::progress;
    }
    void on_end(std::optional<Failure> failure) override {
        if (failure)
            answer_.failure = std::move(failure);
        else if (!answer_.failure)
            answer_.failure = reader_.end();
        if (answer_.failure && answer_.failure->kind == FailureKind::interrupted) {
            answer_.stopped = true;
            answer_.failure.reset();
        }
        answer_.usage = reader_.usage();
        answer_.finish_reason = reader_.finish_reason();
        client_.stop();
    }
    ChatAnswer take() { return std::move(answer_); }

  private:
    void add(const std::string& piece) {
        const double now = client_.now() - asked_;
        if (answer_.pieces++ == 0) answer_.first_seconds = now;
        answer_.stream_seconds = now - answer_.first_seconds;
        answer_.text += piece;
        show_(piece);
    }

    client::HttpClient& client_;
    const std::function<void(std::string_view)>& show_;
    const double asked_;
    client::AnswerReader reader_{kMaxPieces};
    ChatAnswer answer_;
};

Json message(const char* role, const std::string& content) {
    return {{"role", role}, {"content", content}};
}

}  // namespace

std::string closing_line(const ChatAnswer& answer) {
    std::vector<std::string> parts;
    const std::int64_t tokens = answer.usage.completion_tokens.value_or(answer.pieces);
    const char* about = answer.usage.completion_tokens ? "" : "about ";
    parts.push_back(fmt::format("{}{} token{}", about, tokens, tokens == 1 ? "" : "s"));
    // The first token comes out of the prompt's step; the rate is that of the steps after it.
    if (tokens > 1 && answer.stream_seconds > 0)
        parts.push_back(fmt::format("{:.1f} tokens/s",
                                    static_cast<double>(tokens - 1) / answer.stream_seconds));
    // A step yields the drafts that it accepts and one token of its own.
    if (const auto accepted = answer.usage.accepted_tokens; accepted && *accepted < tokens)
        parts.push_back(
            fmt::format("{:.2f} accepted per step",
                        static_cast<double>(*accepted) / static_cast<double>(tokens - *accepted)));
    if (answer.pieces > 0)
        parts.push_back(fmt::format("first after {:.2f} s", answer.first_seconds));
    if (answer.stopped) parts.push_back("stopped");
    if (answer.finish_reason == "length") parts.push_back("cut at its longest");
    return fmt::format("[{}]", fmt::join(parts, ", "));
}

ChatSession::ChatSession(client::HttpClient& client, Json fields, const std::string& system)
    : client_(client), fields_(std::move(fields)) {
    if (!system.empty()) messages_.push_back(message("system", system));
    kept_ = messages_.size();
}

ChatAnswer ChatSession::ask(const std::string& question,
                            const std::function<void(std::string_view)>& show) {
    messages_.push_back(message("user", question));
    Json body = fields_;
    body["messages"] = messages_;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const auto listener = std::make_shared<Listener>(client_, show);
    client_.start({.method = "POST",
                   .path = "/v1/chat/completions",
                   .body = body.dump(-1, ' ', false, Json::error_handler_t::replace)},
                  listener);
    client_.run([this] { client_.end_all({FailureKind::interrupted, "stopped"}); });
    ChatAnswer answer = listener->take();
    // Without an answer the next question would follow this one without a word between.
    if (answer.failure || answer.pieces == 0)
        messages_.erase(messages_.size() - 1);
    else
        messages_.push_back(message("assistant", answer.text));
    return answer;
}

std::optional<std::string> ChatSession::take_back() {
    if (messages_.size() < kept_ + 2) return std::nullopt;
    const std::string question = messages_[messages_.size() - 2]["content"].get<std::string>();
    messages_.erase(messages_.size() - 1);
    messages_.erase(messages_.size() - 1);
    return question;
}

void ChatSession::clear() {
    while (messages_.size() > kept_) messages_.erase(messages_.size() - 1);
}

}  // namespace espalier::cli
