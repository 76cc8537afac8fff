// SPDX-License-Identifier: Apache-2.0
// The part of a model's weights that one rank of an engine holds, of the configuration alone. Dealt
// are heads (q, kv_b), segments of what goes back to the residual (o; down, and with it the rows of
// gate and up), whole experts and rows of the head. Everything else lies on every rank: embedding,
// norms, router, q_a, kv_a, an MTP layer's eh_proj, EAGLE3 drafts.
//
// Only heads must divide. A matrix with fewer segments than ranks lies on as many ranks as it has
// segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/model_config.hpp"
#include "linalg/segments.hpp"
#include "ops/routing.hpp"

namespace espalier::model {

// One rank of `count`. A count of 1: the whole model.
struct Shard {
    int rank = 0;
    int count = 1;
    // Rank of each routed expert, for tests: bits do not depend on it. Empty: expert e mod count.
    std::vector<std::int32_t> expert_owner = {};

    bool whole() const { return count == 1; }
};

// Refuses a number of ranks that does not divide the heads, with those that do, and a rank out of
// range.
Expected<void> check_shard(const checkpoint::ModelConfig& config, const Shard& shard);

// Heads here; the first is the rank's number times as many.
std::int64_t heads_of(const checkpoint::ModelConfig& config, const Shard& shard);
// Segments of o here.
linalg::InputSegments o_segments(const checkpoint::ModelConfig& config, const Shard& shard);
// True if o's segments read, on every rank, the heads that the rank has. Otherwise ranks gather the
// heads' outputs.
bool o_reads_own_heads(const checkpoint::ModelConfig& config, const Shard& shard);
// Segments of the down product of a network of that width: a dense layer, or all shared experts.
linalg::InputSegments down_segments(const checkpoint::ModelConfig& config, std::int64_t width,
                                    const Shard& shard);
// Rows of gate and up here, which are the inputs of these segments.
linalg::Part network_rows(const checkpoint::ModelConfig& config, std::int64_t width,
                          const Shard& shard);
// Rows of the head here.
linalg::Part head_rows(std::int64_t vocabulary, const Shard& shard);
// Experts here, ascending.
std::vector<std::int64_t> experts_of(const checkpoint::ModelConfig& config, const Shard& shard);
// Null for a whole model.
std::shared_ptr<const ops::ExpertDeal> deal_experts(const checkpoint::ModelConfig& config,
                                                    const Shard& shard);

// Arena bytes of what ranks exchange in a layer or behind the head.
std::size_t exchange_scratch(const checkpoint::ModelConfig& config, const Shard& shard);

}  // namespace espalier::model
