// SPDX-License-Identifier: Apache-2.0
// The engine's side of a request between submit and its end: what the scheduler need not know.
// Plain data; owned by Stepper, one LiveRequest per choice, by request slot.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "accept/prompt_logprobs.hpp"
#include "accept/request_progress.hpp"
#include "engine/receiver.hpp"
#include "engine/request.hpp"
#include "schedule/request.hpp"

namespace espalier::engine {

// What the choices of a request have in common.
struct RequestGroup {
    SamplingOptions sampling;
    bool speculate = true;
    std::int64_t max_tokens = 0;
    std::optional<accept::PromptLogprobs> prompt_logprobs;
    std::shared_ptr<Receiver> receiver;
};

struct LiveRequest {
    LiveRequest(schedule::RequestId request_id, std::int32_t which,
                std::shared_ptr<RequestGroup> common, accept::RequestProgress start)
        : id(request_id), choice(which), group(std::move(common)), progress(std::move(start)) {}

    schedule::RequestId id;
    std::int32_t choice = 0;
    std::shared_ptr<RequestGroup> group;
    accept::RequestProgress progress;
    accept::Emission emission;
    bool planned = false;             // drafters know it
    bool prompt_logprobs_sent = false;
};

}  // namespace espalier::engine
