// SPDX-License-Identifier: Apache-2.0
// What a client sees of one request: its answer's bytes and their times in, a record out. Pure: the
// times are given to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "client/answer_reader.hpp"
#include "client/http_client.hpp"

namespace espalier::load {

// Seconds from the run's start.
struct RequestRecord {
    double due = 0;   // by the schedule
    double sent = 0;  // later, if too many were under way
    std::optional<double> first_piece = {};
    double ended = 0;
    std::vector<double> gaps = {};   // from one piece of text to the next
    std::int64_t input_tokens = 0;   // as the server counts them, else a guess
    std::int64_t output_tokens = 0;  // likewise; the guess is one for each piece
    bool counted_by_server = false;
    std::optional<std::int64_t> accepted_tokens = {}, rejected_tokens = {};
    std::optional<client::Failure> failure = {};

    std::int64_t pieces() const { return first_piece ? std::ssize(gaps) + 1 : 0; }
};

class Recorder {
  public:
    // input_tokens: what the request is thought to have, if the server does not say.
    Recorder(double due, double sent, std::int64_t input_tokens, std::int64_t max_tokens);

    void status(int status) { reader_.begin(status); }
    client::Verdict bytes(double now, std::string_view bytes);
    void end(double now, std::optional<client::Failure> failure);
    const RequestRecord& record() const { return record_; }

  private:
    client::AnswerReader reader_;
    RequestRecord record_;
    double last_piece_ = 0;
    std::optional<client::Failure> failure_;
};

}  // namespace espalier::load
