// SPDX-License-Identifier: Apache-2.0
// The answers of POST /v1/messages as Anthropic's clients read them: a message of text, thinking
// and tool_use blocks, whole or as named events, and errors in the same form. Pure.
#pragma once

#include <string>
#include <vector>

#include "server/api/parts_reply.hpp"
#include "server/http.hpp"

namespace espalier::server {

// Parts of the request that shape its answer.
struct MessagesAnswer {
    std::vector<std::string> stop_sequences;
    std::int64_t max_tokens = 0;
    bool omits_thinking = false;  // thinking blocks without their text
};

class MessagesReply final : public PartsReply {
  public:
    MessagesReply(PartsReplyOptions options, MessagesAnswer answer);

    void end(std::string& out) override;
    std::string failed(const ApiError& error) override;
    std::string ping() const override;

  private:
    void opened(std::string& out) override;
    void part_began(std::string& out) override;
    void part_grew(const std::string& text, std::string& out) override;
    void part_ended(std::string& out) override;

    void event(const char* type, nlohmann::ordered_json body, std::string& out) const;
    void delta(const char* type, const char* name, const std::string& text, std::string& out) const;
    nlohmann::ordered_json envelope() const;
    nlohmann::ordered_json block(const Part& part) const;
    nlohmann::ordered_json usage() const;
    const char* stop_reason() const;
    nlohmann::ordered_json stop_sequence() const;

    const MessagesAnswer answer_;
    bool started_ = false;  // message_start is out
};

// {"type":"error","error":{"type","message"}}
std::string messages_error_json(const ApiError& error);
HttpResponse messages_error_response(const ApiError& error);
// Agents trim their history by these words.
ApiError messages_too_long(TokenCount tokens, std::int64_t limit, const std::string& field);

}  // namespace espalier::server
