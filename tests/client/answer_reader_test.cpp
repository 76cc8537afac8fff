// SPDX-License-Identifier: Apache-2.0
#include "client/answer_reader.hpp"

#include <gtest/gtest.h>

namespace espalier::client {
namespace {

struct Read {
    std::vector<std::string> pieces;
    std::optional<Failure> failure;
    AnswerUsage usage;
    std::string finish_reason;
};

Read read(const std::string& body, int status = 200, std::int64_t max_pieces = 100) {
    AnswerReader reader(max_pieces);
    reader.begin(status);
    Read read;
    for (std::size_t at = 0; at < body.size() && !read.failure; at += 5)
        read.failure = reader.push(std::string_view(body).substr(at, 5), read.pieces);
    if (!read.failure) read.failure = reader.end();
    read.usage = reader.usage();
    read.finish_reason = reader.finish_reason();
    return read;
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }
const std::string kDone = event("[DONE]");

TEST(AnswerReader, ReadsACompletion) {
    const Read answer =
        read(event(R"({"choices":[{"text":"ab","finish_reason":null}]})") +
             event(R"({"choices":[{"text":"c","finish_reason":"stop"}],"usage":null})") +
             event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,)"
                   R"("completion_tokens_details":{"accepted_prediction_tokens":4,)"
                   R"("rejected_prediction_tokens":2}}})") +
             kDone + event("behind the end"));
    EXPECT_FALSE(answer.failure);
    EXPECT_EQ(answer.pieces, (std::vector<std::string>{"ab", "c"}));
    EXPECT_EQ(answer.finish_reason, "stop");
    EXPECT_EQ(answer.usage.prompt_tokens, 7);
    EXPECT_EQ(answer.usage.completion_tokens, 9);
    EXPECT_EQ(answer.usage.accepted_tokens, 4);
    EXPECT_EQ(answer.usage.rejected_tokens, 2);
}

TEST(AnswerReader, ReadsAChatWithThoughts) {
    const Read answer =
        read(event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})") +
             event(R"({"choices":[{"delta":{"reasoning_content":"hm","content":null}}]})") +
             event(R"({"choices":[{"delta":{"content":"yes"}}]})") +
             event(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})"));
    EXPECT_FALSE(answer.failure);  // ended by its reason; [DONE] is a courtesy
    EXPECT_EQ(answer.pieces, (std::vector<std::string>{"hm", "yes"}));
    EXPECT_FALSE(answer.usage.completion_tokens);
}

TEST(AnswerReader, AnAnswerWithoutTextIsOnePieceAtItsEnd) {
    const Read answer = read(event(R"({"choices":[{"text":"","finish_reason":"stop"}]})") + kDone);
    EXPECT_FALSE(answer.failure);
    EXPECT_EQ(answer.pieces, (std::vector<std::string>{""}));
}

TEST(AnswerReader, NamesWhatIsWrong) {
    const std::string piece = event(R"({"choices":[{"text":"x"}]})");
    const struct {
        std::string body;
        FailureKind kind;
        const char* message;
    } cases[] = {
        {"", FailureKind::events, "no events with text"},
        {"<html>hello</html>", FailureKind::events, "no events with text"},
        {R"({"choices":[{"text":"whole, not streamed"}]})", FailureKind::events, "no events"},
        {kDone, FailureKind::events, "no events with text"},
        {piece, FailureKind::closed, "before the answer did"},
        {piece + event("{"), FailureKind::json, "no JSON object"},
        {piece + event("17"), FailureKind::json, "no JSON object"},
        {piece + event("\xff\xfe"), FailureKind::json, "no JSON object"},
        {event(std::string(10'000, '[')), FailureKind::json, "no JSON object"},
        {event("{}"), FailureKind::json, "has no choices"},
        {event(R"({"choices":{}})"), FailureKind::json, "has no choices"},
        {event(R"({"choices":[7]})"), FailureKind::json, "choice has no text"},
        {event(R"({"choices":[{"text":7}]})"), FailureKind::json, "choice has no text"},
        {event(R"({"choices":[{"delta":"x"}]})"), FailureKind::json, "choice has no text"},
        {event(R"({"choices":[],"usage":7})"), FailureKind::json, "usage"},
        {event(R"({"choices":[],"usage":{"completion_tokens":-1}})"), FailureKind::json, "usage"},
        {event(R"({"choices":[],"usage":{"completion_tokens":1e300}})"), FailureKind::json,
         "usage"},
        {event(R"({"choices":[],"usage":{"prompt_tokens":"7"}})"), FailureKind::json, "usage"},
        {piece + event(R"({"error":{"message":"out of order","code":500}})"),
         FailureKind::server_error, "out of order"},
        {event(R"({"error":"plain"})"), FailureKind::server_error, "plain"},
        {event(R"({"error":[1]})"), FailureKind::server_error, "[1]"},
    };
    for (const auto& [body, kind, message] : cases) {
        const Read answer = read(body);
        ASSERT_TRUE(answer.failure) << body;
        EXPECT_EQ(answer.failure->kind, kind) << body.substr(0, 100);
        EXPECT_NE(answer.failure->message.find(message), std::string::npos)
            << answer.failure->message;
    }
}

TEST(AnswerReader, AServerThatNeverEndsIsLeft) {
    std::string body;
    for (int i = 0; i < 11; ++i) body += event(R"({"choices":[{"text":"x"}]})");
    EXPECT_FALSE(read(body + kDone, 200, 11).failure);
    EXPECT_EQ(read(body + kDone, 200, 10).failure->kind, FailureKind::events);
}

TEST(AnswerReader, AStatusSpeaksThroughItsBody) {
    EXPECT_EQ(read(R"({"error":{"message":"the queue\nis full"}})", 429).failure->message,
              "HTTP 429: the queue is full");
    EXPECT_EQ(read("", 503).failure->message, "HTTP 503");
    EXPECT_EQ(read("<h1>\x1b[31mBad</h1>", 502).failure->message, "HTTP 502: <h1> [31mBad</h1>");
    EXPECT_EQ(read(event("x"), 500).failure->kind, FailureKind::status);
    EXPECT_LT(read(std::string(1 << 20, 'x'), 500).failure->message.size(), 400u);
}

}  // namespace
}  // namespace espalier::client
