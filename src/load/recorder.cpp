// SPDX-License-Identifier: Apache-2.0
#include "load/recorder.hpp"

#include <string>
#include <utility>

namespace espalier::load {
namespace {

// A token may come in several pieces (a server that flushes every byte), but not in many more.
constexpr std::int64_t kPiecesPerToken = 16;

}  // namespace

Recorder::Recorder(double due, double sent, std::int64_t input_tokens, std::int64_t max_tokens)
    : reader_(kPiecesPerToken * (max_tokens + 1)),
      record_{.due = due, .sent = sent, .input_tokens = input_tokens} {}

client::Verdict Recorder::bytes(double now, std::string_view bytes) {
    std::vector<std::string> pieces;
    failure_ = reader_.push(bytes, pieces);
    if (failure_) return client::Verdict::enough;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!record_.first_piece)
            record_.first_piece = now;
        else
            record_.gaps.push_back(now - last_piece_);
        last_piece_ = now;
    }
    if (reader_.done()) return client::Verdict::enough;
    return pieces.empty() ? client::Verdict::waiting : client::Verdict::progress;
}

void Recorder::end(double now, std::optional<client::Failure> failure) {
    record_.ended = now;
    if (!failure) failure = failure_ ? failure_ : reader_.end();
    record_.failure = std::move(failure);
    const client::AnswerUsage& usage = reader_.usage();
    record_.counted_by_server = usage.completion_tokens.has_value();
    record_.input_tokens = usage.prompt_tokens.value_or(record_.input_tokens);
    record_.output_tokens = usage.completion_tokens.value_or(record_.pieces());
    record_.accepted_tokens = usage.accepted_tokens;
    record_.rejected_tokens = usage.rejected_tokens;
}

}  // namespace espalier::load
