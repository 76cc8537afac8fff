// SPDX-License-Identifier: Apache-2.0
// Reads the answer to one streamed request, chat or completion, from the bytes of its body: pieces
// of text, usage, the end, or what is wrong with it. Pure, and bounded by what it was asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/event_stream.hpp"
#include "client/failure.hpp"

namespace espalier::client {

// The server's counts; absent where it does not give them.
struct AnswerUsage {
    std::optional<std::int64_t> prompt_tokens = {};
    std::optional<std::int64_t> completion_tokens = {};
    std::optional<std::int64_t> accepted_tokens = {};  // drafts that became text
    std::optional<std::int64_t> rejected_tokens = {};
};

class AnswerReader {
  public:
    // More pieces than `max_pieces` are refused: an endless answer cannot hold the caller up.
    explicit AnswerReader(std::int64_t max_pieces) : max_pieces_(max_pieces) {}

    // The HTTP status, before the first byte of the body.
    void begin(int status) { status_ = status; }
    // Appends the texts of the events that these bytes complete; the event that ends the answer
    // counts as a piece too, if there was no text before it.
    std::optional<Failure> push(std::string_view bytes, std::vector<std::string>& pieces);
    // The body is over: nothing, or why this was no answer.
    std::optional<Failure> end() const;

    bool done() const { return done_; }  // what follows is of no interest
    const AnswerUsage& usage() const { return usage_; }
    const std::string& finish_reason() const { return finish_reason_; }

  private:
    std::optional<Failure> take(const std::string& data, std::vector<std::string>& pieces);

    std::int64_t max_pieces_;
    std::int64_t pieces_ = 0;
    int status_ = 0;
    bool done_ = false;
    EventStream events_;
    std::string error_body_;  // of a status other than 200
    std::string finish_reason_;
    AnswerUsage usage_;
};

// "429: the queue is full": what a body says of its status, in a line, without control characters.
std::string status_message(int status, std::string_view body);

}  // namespace espalier::client
