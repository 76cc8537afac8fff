// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply_writer.hpp"

namespace espalier::server {

using accept::FinishReason;
using engine::Interruption;

std::string sse_event(const std::string& json) { return "data: " + json + "\n\n"; }

std::string sse_event(const std::string& name, const std::string& json) {
    return "event: " + name + "\n" + sse_event(json);
}

bool ended_by_text(FinishReason reason) {
    switch (reason) {
        case FinishReason::eos:
        case FinishReason::stop_token:
        case FinishReason::stop_string:
        case FinishReason::length:
            return true;
        case FinishReason::bad_numbers:
        case FinishReason::nothing_left:
        case FinishReason::interrupted:
            return false;
    }
    return false;
}

ApiError failure_of(const engine::ChoiceUpdate& update) {
    if (update.finish.reason == FinishReason::nothing_left)
        return {.message = "no token was left to choose: its bans and filters leave none"};
    ApiError error{.status = 500, .message = {}, .type = "server_error"};
    if (update.finish.reason == FinishReason::bad_numbers)
        error.message = "the model computed a number that is not finite";
    else if (update.interruption == Interruption::deadline)
        error = {.status = 504,
                 .message = "the request took longer than this server allows",
                 .type = "timeout_error"};
    else if (update.interruption == Interruption::stopped)
        error = unavailable("the server is shutting down");
    else
        error.message = "the request was interrupted: " + update.message;
    return error;
}

}  // namespace espalier::server
