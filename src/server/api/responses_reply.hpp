// SPDX-License-Identifier: Apache-2.0
// The answers of POST /v1/responses: a response whose output is a list of items (reasoning, a
// message, calls of functions), whole or as numbered events. Pure.
#pragma once

#include <string>

#include "server/api/parts_reply.hpp"

namespace espalier::server {

class ResponsesReply final : public PartsReply {
  public:
    // repeated: what the response repeats of its request.
    ResponsesReply(PartsReplyOptions options, nlohmann::ordered_json repeated);

    void begin(std::string& out) override;
    void end(std::string& out) override;
    std::string failed(const ApiError& error) override;

  private:
    void part_began(std::string& out) override;
    void part_grew(const std::string& text, std::string& out) override;
    void part_ended(std::string& out) override;

    void event(const char* type, nlohmann::ordered_json body, std::string& out);
    // Event of the open item, with item_id and output_index; has_content: content_index too.
    void item_event(const char* type, nlohmann::ordered_json body, bool has_content,
                    std::string& out);
    void response_event(const char* type, const char* status, std::string& out);
    nlohmann::ordered_json response(const char* status) const;
    nlohmann::ordered_json item(std::size_t index, const char* status) const;
    // Item as it is in the events of its beginning.
    nlohmann::ordered_json empty_item(std::size_t index) const;
    std::string item_id(std::size_t index) const;
    nlohmann::ordered_json usage() const;
    bool is_cut() const { return finish_.reason == accept::FinishReason::length; }

    const nlohmann::ordered_json repeated_;
    nlohmann::ordered_json error_;  // null: none
    std::int64_t events_ = 0;
    bool ending_ = false;  // the last item ends with the output
};

}  // namespace espalier::server
