// SPDX-License-Identifier: Apache-2.0
// One conversation with a server: its turns so far, the next question, the answer as it comes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "client/answer_reader.hpp"
#include "client/http_client.hpp"

namespace espalier::cli {

struct ChatAnswer {
    std::string text = {};
    client::AnswerUsage usage = {};
    std::int64_t pieces = 0;    // of text
    double first_seconds = 0;   // from the question to the first piece
    double stream_seconds = 0;  // from there to the last
    std::string finish_reason = {};
    bool stopped = false;                         // by Ctrl-C
    std::optional<client::Failure> failure = {};  // any other end before its time
};

// "[85 tokens, 412.3 tokens/s, 1.20 accepted per step]". Pure.
std::string closing_line(const ChatAnswer& answer);

class ChatSession {
  public:
    // fields: what every request has beside its messages (model, temperature …). system: empty:
    // none.
    ChatSession(client::HttpClient& client, nlohmann::ordered_json fields,
                const std::string& system);

    // show: each piece of the answer as it comes. Ctrl-C ends it, and what came stays in the
    // conversation; a question that fails leaves no trace there.
    ChatAnswer ask(const std::string& question, const std::function<void(std::string_view)>& show);
    // The last question, if there is one; it and its answer are forgotten.
    std::optional<std::string> take_back();
    // Forgets all but the system's words.
    void clear();
    const nlohmann::ordered_json& messages() const { return messages_; }

  private:
    client::HttpClient& client_;
    nlohmann::ordered_json fields_;
    nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
    std::size_t kept_ = 0;  // messages that clear() leaves
};

}  // namespace espalier::cli
