// SPDX-License-Identifier: Apache-2.0
// `system` and `messages` of a body for /v1/messages: blocks of text, thinking, tool_use and
// tool_result as the chat that templates read. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "server/chat_messages.hpp"
#include "server/fields.hpp"

namespace espalier::server {

// The messages of `chat`, and whether the last one, an assistant's, is to be continued. Faults are
// kept in `fields`. ordered: parse_ordered()'s. drops_billing_header: see billing_header.hpp.
void read_messages_content(Fields& fields, const nlohmann::ordered_json& ordered,
                           bool drops_billing_header, ChatInput& chat);

}  // namespace espalier::server
