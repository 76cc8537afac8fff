// SPDX-License-Identifier: Apache-2.0
#include "model/shard_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/at.hpp"
#include "ops/rank_terms.hpp"
#include "parallel/ranks.hpp"

namespace espalier::model {

using checkpoint::ModelConfig;

Expected<void> check_shard(const ModelConfig& config, const Shard& shard) {
    const std::int64_t heads = config.num_attention_heads;
    if (shard.count < 1 || heads % shard.count != 0 || shard.count > parallel::kMaxRanks) {
        std::vector<std::int64_t> possible;
        for (std::int64_t n = 1; n <= std::min<std::int64_t>(heads, parallel::kMaxRanks); ++n)
            if (heads % n == 0) possible.push_back(n);
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{} ranks for {} heads: {} are possible", shard.count, heads,
                          fmt::join(possible, ", "));
    }
    if (shard.rank < 0 || shard.rank >= shard.count)
        return fail(ErrorKind::invalid, "rank {} of {}", shard.rank, shard.count);
    if (shard.expert_owner.empty()) return {};
    if (std::ssize(shard.expert_owner) != config.n_routed_experts)
        return fail(ErrorKind::invalid, "ranks of {} experts for a model of {}",
                    shard.expert_owner.size(), config.n_routed_experts);
    for (const std::int32_t owner : shard.expert_owner)
        if (owner < 0 || owner >= shard.count)
            return fail(ErrorKind::invalid, "an expert on rank {} of {}", owner, shard.count);
    return {};
}

std::int64_t heads_of(const ModelConfig& config, const Shard& shard) {
    return config.num_attention_heads / shard.count;
}

linalg::InputSegments o_segments(const ModelConfig& config, const Shard& shard) {
    return linalg::part_of(
        linalg::head_segments(config.hidden_size, config.num_attention_heads, config.v_head_dim),
        shard.rank, shard.count);
}

bool o_reads_own_heads(const ModelConfig& config, const Shard& shard) {
    if (shard.whole()) return true;
    const linalg::InputSegments cut = o_segments(config, shard);
    return cut.whole % shard.count == 0 &&
           cut.whole * cut.inputs == config.num_attention_heads * config.v_head_dim;
}

linalg::InputSegments down_segments(const ModelConfig& config, std::int64_t width,
                                    const Shard& shard) {
    return linalg::part_of(linalg::input_segments(config.hidden_size, width), shard.rank,
                           shard.count);
}

linalg::Part network_rows(const ModelConfig& config, std::int64_t width, const Shard& shard) {
    return linalg::inputs_of(down_segments(config, width, shard), width);
}

linalg::Part head_rows(std::int64_t vocabulary, const Shard& shard) {
    return linalg::outputs_of(vocabulary, shard.rank, shard.count);
}

namespace {

std::int64_t owner_of(const Shard& shard, std::int64_t expert) {
    return shard.expert_owner.empty() ? expert % shard.count : at(shard.expert_owner, expert);
}

}  // namespace

std::vector<std::int64_t> experts_of(const ModelConfig& config, const Shard& shard) {
    std::vector<std::int64_t> experts;
    for (std::int64_t expert = 0; expert < config.n_routed_experts; ++expert)
        if (owner_of(shard, expert) == shard.rank) experts.push_back(expert);
    return experts;
}

std::shared_ptr<const ops::ExpertDeal> deal_experts(const ModelConfig& config, const Shard& shard) {
    if (shard.whole()) return nullptr;
    auto deal = std::make_shared<ops::ExpertDeal>();
    deal->place.resize(static_cast<std::size_t>(config.n_routed_experts));
    deal->first.push_back(0);
    std::int32_t next = 0;
    for (int rank = 0; rank < shard.count; ++rank) {
        Shard other = shard;
        other.rank = rank;
        for (const std::int64_t expert : experts_of(config, other))
            at(deal->place, expert) = next++;
        deal->first.push_back(next);
    }
    return deal;
}

std::size_t exchange_scratch(const checkpoint::ModelConfig& config, const Shard& shard) {
    if (shard.whole()) return 0;
    const std::int64_t shared = config.n_shared_experts * config.moe_intermediate_size;
    const std::int64_t segments =
        std::max({o_segments(config, shard).whole,
                  down_segments(config, config.intermediate_size, shard).whole,
                  down_segments(config, shared, shard).whole});
    const std::int64_t widest = std::max({segments * config.hidden_size, config.vocab_size,
                                          config.num_attention_heads * config.v_head_dim});
    return ops::rank_scratch_bytes(widest * std::int64_t{sizeof(float)});
}

}  // namespace espalier::model
