// SPDX-License-Identifier: Apache-2.0
// The engine's side of a request between submit and its end: what the scheduler need not know.
// Plain data; owned by Stepper, one LiveRequest per choice, by request slot.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accept/constraint.hpp"
#include "accept/prompt_logprobs.hpp"
#include "accept/request_progress.hpp"
#include "accept/sampling_parameters.hpp"
#include "accept/walk.hpp"
#include "engine/receiver.hpp"
#include "schedule/request.hpp"
#include "speculate/drafter.hpp"

namespace espalier::engine {

// State that the choices of a request have in common.
struct RequestGroup {
    explicit RequestGroup(accept::SamplingParameters parameters)
        : sampling(std::move(parameters)) {}

    accept::SamplingParameters sampling;
    bool speculate = true;
    std::optional<speculate::DraftShape> drafts;  // prescribed
    bool report_trees = false;
    bool logprobs = true;
    std::vector<std::int32_t> forced_output, expected_output;  // see Request
    std::int64_t max_tokens = 0;
    std::optional<accept::PromptLogprobs> prompt_logprobs;
    bool prompt_logprobs_sent = false;
    std::shared_ptr<Receiver> receiver;
};

struct LiveRequest {
    LiveRequest(schedule::RequestId request_id, std::int32_t which,
                std::shared_ptr<RequestGroup> common, accept::RequestProgress start)
        : id(request_id), choice(which), group(std::move(common)), progress(std::move(start)) {
        // Sized for what one step can bring; text is mostly shorter.
        const auto top = static_cast<std::size_t>(progress.rules().options().top_logprobs);
        emission.tokens.reserve(kMaxNodes);
        emission.top.reserve(kMaxNodes * top);
        emission.text.reserve(kMaxNodes * 16);
    }

    schedule::RequestId id;
    std::int32_t choice = 0;
    std::shared_ptr<RequestGroup> group;
    accept::RequestProgress progress;
    std::unique_ptr<accept::Constraint> constraint;  // null: anything may be drawn
    accept::Emission emission;
    std::vector<VerifiedTree> trees;  // since the last update, under report_trees
    bool planned = false;             // it has been in a batch, and drafters know it
    std::int64_t cached_tokens = 0;   // found in the prefix index when it was first planned
    RequestTimes times;
    // Why it is to end, where the engine and not the scheduler decided so.
    Interruption interruption = Interruption::none;
    std::string message;
};

}  // namespace espalier::engine
