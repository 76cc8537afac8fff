// SPDX-License-Identifier: Apache-2.0
// What a completion's texts should be: the engine's own, for the same request; and what an answer
// says they are.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/runtime.hpp"
#include "server/client.hpp"

namespace espalier::server::test {

// The request of a body for /v1/completions, straight to an engine.
engine::Stream submit_body(runtime::Runtime& runtime, const nlohmann::json& body);
// Its texts, by choice.
std::vector<std::string> texts_of(engine::Stream& stream);
// An answer's, streamed or not; where it reports its drafts, the report must spell them.
std::vector<std::string> texts_of(const Answer& answer, std::size_t choices);

}  // namespace espalier::server::test
