// SPDX-License-Identifier: Apache-2.0
// How one API writes its answers: updates of the engine go in, bytes come out, as server-sent
// events while tokens come or as one JSON object at the end. One implementation per API.
//
//   begin → add … until complete() or failure() → end
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "engine/mailbox.hpp"
#include "server/api_error.hpp"

namespace espalier::server {

// data: {…}\n\n
std::string sse_event(const std::string& json);
// event: NAME\ndata: {…}\n\n
std::string sse_event(const std::string& name, const std::string& json);
inline constexpr const char* kSsePing = ": ping\n\n";  // a comment, which clients skip

class ReplyWriter {
  public:
    virtual ~ReplyWriter() = default;
    // Appends what a stream begins with.
    virtual void begin(std::string& out) { (void)out; }
    // Updates of one prompt's choices; events, where there are any, are appended.
    virtual void add(std::size_t prompt, const engine::Updates& updates, std::string& out) = 0;
    virtual bool complete() const = 0;
    // An output ended otherwise than by its text.
    virtual const std::optional<ApiError>& failure() const = 0;
    // Appends the end of a stream or, without one, the whole object.
    virtual void end(std::string& out) = 0;
    // The last event of a stream that fails.
    virtual std::string failed(const ApiError& error) = 0;
    // An event without a meaning, for a stream that is silent.
    virtual std::string ping() const { return kSsePing; }
};

// The reason is the text's own: its end, a stop condition or its length.
bool ended_by_text(accept::FinishReason reason);
// The error of an output that ended otherwise.
ApiError failure_of(const engine::ChoiceUpdate& update);

}  // namespace espalier::server
