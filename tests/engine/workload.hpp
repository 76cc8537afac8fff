// SPDX-License-Identifier: Apache-2.0
// Random workloads for the lossless test: requests that share prefixes, come and go at random
// steps, ask for everything a request can ask for, and an engine whose limits force chunks, waiting
// and preemption. A workload is a function of its seed.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/random_drafter.hpp"
#include "engine/request.hpp"
#include "engine/stepper.hpp"
#include "engine/tiny_target.hpp"

namespace espalier::engine {

struct WorkloadRequest {
    Request request;
    int arrival = 0;     // the step before which it is submitted
    int cancelled = -1;  // the step before which it is cancelled; < 0: never
    int cancelled_choice = 0;
};

struct Workload {
    std::uint64_t seed = 0;
    Family family = Family::v2;
    StepperSettings settings;
    bool ngram = false;          // the n-gram drafter takes part
    bool random_drafter = true;  // and the random one
    RandomDrafterOptions drafter;
    std::vector<std::int32_t> palette;  // tokens that prompts, biases and wrong drafts are made of
    std::vector<WorkloadRequest> requests;
};

Workload random_workload(std::uint64_t seed);

}  // namespace espalier::engine
