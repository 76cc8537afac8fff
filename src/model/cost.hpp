// SPDX-License-Identifier: Apache-2.0
// How many parameters, bytes and operations a model and its steps take: what `inspect` prints and
// what `bench` measures itself against. Pure arithmetic over the config.
#pragma once

#include <cstdint>

#include "base/weight_format.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::model {

struct ParameterCount {
    std::int64_t total = 0;  // target layers, embedding, head
    std::int64_t active =
        0;  // read for one token: the embedding row and the experts not chosen left out
    std::int64_t experts = 0;  // of the total, in routed experts
    std::int64_t mtp = 0;      // draft layers, not in the total
};
ParameterCount count_parameters(const checkpoint::ModelConfig& config);

// Cost of one forward pass of a StepShape. Every sequence has the same number of tokens and
// `depth` cached tokens of its own before them.
struct StepCost {
    double weight_bytes = 0;  // routed experts in expectation, when tokens choose independently
    double cache_bytes = 0;
    double flops = 0;
};
struct StepShape {
    std::int64_t tokens = 1;
    std::int64_t depth = 0;         // cached tokens before them
    std::int64_t decompressed = 0;  // of the tokens, how many take the decompressed form
    std::int64_t gathered = 1;
    std::int64_t sequences = 1;  // of all tokens; more than one: none is decompressed
};
// Formats of the matrices that a step reads.
struct StepFormats {
    WeightFormat attention;  // but for kv_b
    WeightFormat kv_b;
    WeightFormat feed_forward;  // dense layers', or the routed and shared experts'
    WeightFormat head;
};
StepCost step_cost(const checkpoint::ModelConfig& config, const StepFormats& formats,
                   const StepShape& shape);

// Bytes of all weights, MTP included, with projections rounded at load (LoadOptions::rounding) and
// heads rounded to int8 or kept.
std::uint64_t rounded_bytes(const checkpoint::ModelConfig& config, WeightCode code,
                            bool head_int8 = false);

// Cost of one more visible key to a query, in units of the operations of a token that sees none:
// how much dearer a long context makes a step that is bound by arithmetic. The cost of projecting
// decompressed keys is left out.
struct PairCost {
    double absorbed = 0;
    double decompressed = 0;
};
PairCost pair_cost(const checkpoint::ModelConfig& config);

}  // namespace espalier::model
