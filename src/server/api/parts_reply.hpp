// SPDX-License-Identifier: Apache-2.0
// What the answers of /v1/messages and /v1/responses have in common: one output, told as a list of
// parts (reasoning, content, calls of functions), each of which begins, grows and ends. An API's
// own class writes the events; pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "output/parser.hpp"
#include "server/api/reply_writer.hpp"

namespace espalier::server {

struct PartsReplyOptions {
    std::string id;            // the answer's, prefix and all: msg_…, resp_…
    std::string call_prefix;   // of ids for calls that the model gave none
    std::int64_t created = 0;  // seconds since 1970
    std::string model;
    bool stream = false;
    output::ParserOptions parser = {};
};

class PartsReply : public ReplyWriter {
  public:
    explicit PartsReply(PartsReplyOptions options);

    void add(std::size_t prompt, const engine::Updates& updates, std::string& out) final;
    bool complete() const final { return ended_; }
    const std::optional<ApiError>& failure() const final { return failure_; }

  protected:
    struct Part {
        enum class Kind : std::uint8_t { reasoning, content, call };
        Kind kind = Kind::content;
        std::string text = {};           // of a call its arguments
        std::string id = {}, name = {};  // of a call
    };

    // A stream's beginning: the first update is there, so the prompt's usage is known.
    virtual void opened(std::string& out) { (void)out; }
    virtual void part_began(std::string& out) = 0;                          // parts_.back()
    virtual void part_grew(const std::string& text, std::string& out) = 0;  // likewise
    virtual void part_ended(std::string& out) = 0;                          // likewise

    // The part that is open ends, if there is one.
    void close_part(std::string& out);
    // The hexadecimal part of the answer's id, for ids of its parts.
    std::string own_digits() const;
    bool has_calls() const;

    const PartsReplyOptions options_;
    std::vector<Part> parts_;
    accept::Usage usage_;
    std::int64_t cached_tokens_ = 0;
    accept::Finish finish_;  // once complete()

  private:
    void add_event(const output::Event& event, std::string& out);

    output::Parser parser_;
    bool opened_ = false, open_ = false, ended_ = false;
    std::optional<ApiError> failure_;
};

// Compact JSON; what is no UTF-8 is replaced.
std::string json_text(const nlohmann::ordered_json& json);

}  // namespace espalier::server
