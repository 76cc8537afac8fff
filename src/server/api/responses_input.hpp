// SPDX-License-Identifier: Apache-2.0
// `instructions` and `input` of a body for /v1/responses: messages, reasoning, calls and their
// outputs as the chat that templates read. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "server/fields.hpp"

namespace espalier::server {

// Faults are kept in `fields`.
nlohmann::json read_responses_input(Fields& fields);

}  // namespace espalier::server
