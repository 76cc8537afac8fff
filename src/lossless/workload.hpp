// SPDX-License-Identifier: Apache-2.0
// Random workloads: requests that share prefixes, come and go at random steps, ask for everything a
// request can ask for, and an engine whose limits force chunks, waiting and preemption. A workload
// is a function of its seed and the model's vocabulary and tokenizer.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.hpp"
#include "engine/stepper.hpp"
#include "lossless/plain_run.hpp"
#include "lossless/random_drafter.hpp"

namespace espalier::lossless {

// The sizes that the model must be set up for.
inline constexpr std::int64_t kWorkloadTokens = 1024;  // of a batch
inline constexpr std::int64_t kWorkloadGather = 512;
inline constexpr std::int64_t kWorkloadLength = 512;  // of a sequence
inline constexpr std::int64_t kLongWorkloadLength = 2048;
inline constexpr std::int64_t kWorkloadVocabulary = 64;

struct WorkloadRequest {
    engine::Request request;
    int arrival = 0;     // the step before which it is submitted
    int cancelled = -1;  // the step before which it is cancelled; < 0: never
    int cancelled_choice = 0;
    // The next turn of a chat: its prompt follows after the prompt and the answer (choice 0) of
    // this earlier request; < 0: it begins a text.
    int continues = -1;
};

struct Workload {
    std::uint64_t seed = 0;
    engine::StepperSettings settings;
    bool own_drafters = false;     // the model's own take part
    bool ngram = false;            // the n-gram drafter too
    bool random_drafter = true;    // and the random one
    bool grammar_drafter = false;  // and the one of what grammars force
    RandomDrafterOptions drafter;
    std::vector<RandomDrafterOptions>
        more_drafters;                  // random ones beside it, up to the engine's most
    std::vector<std::int32_t> palette;  // tokens that prompts, biases and wrong drafts are made of
    std::vector<WorkloadRequest> requests;
};

// Refuses a model that is too small, or set up for less.
Expected<void> check_subject(const Subject& subject);
Workload random_workload(std::uint64_t seed, const Subject& subject);
// random_workload with prompts of up to 14 pages, logprobs of all prompt tokens and next turns of
// chats; sometimes without the decompressed form, so that next turns find generated text in the
// cache. The model must be set up for sequences of kLongWorkloadLength.
Workload long_workload(std::uint64_t seed, const Subject& subject);
// random_workload with grammars and reasoning (grammars.hpp) for most of its requests.
Workload grammar_workload(std::uint64_t seed, const Subject& subject);

}  // namespace espalier::lossless
