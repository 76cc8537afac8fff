// SPDX-License-Identifier: Apache-2.0
// Routing. A block for a token scores all experts and ranks them: an expert is chosen if fewer than
// top_k are better, which makes E²/128 comparisons a thread (512 for V3's 256) but needs no sort.
// Then a block for an expert walks over all choices twice: it counts those of lower experts, and
// gives its own pairs their places, in the order of the tokens.
#include <limits>

#include "ops/cuda/block.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/launch.cuh"
#include "ops/portable_math.hpp"

namespace espalier::ops::cuda {
namespace {

constexpr int kTokenThreads = 128;
constexpr int kPairThreads = 256;

struct TokenMemory {
    float scores[kMaxExperts];
    float choice[kMaxExperts];
    float group[kMaxExperts];  // scores of groups
    bool open[kMaxExperts];    // in a group that is kept
    bool chosen[kMaxExperts];
    float reduced[kTokenThreads / 32];
    float sum;
};

// Whether candidate a comes before b, which has a higher index.
__device__ bool beats(float a, int a_index, float b, int b_index) {
    return a > b || (a == b && a_index < b_index);
}

template <typename Body>
__device__ void for_experts(std::int32_t count, const Body& body) {
    for (int e = static_cast<int>(threadIdx.x); e < count; e += kTokenThreads) body(e);
}

__device__ void make_scores(const float* logits, const RouterRule& rule, TokenMemory& memory) {
    if (rule.score == RouterScore::sigmoid) {
        for_experts(rule.experts, [&](int e) { memory.scores[e] = portable_sigmoid(logits[e]); });
        __syncthreads();
        return;
    }
    float maximum = -std::numeric_limits<float>::infinity();
    for_experts(rule.experts, [&](int e) { maximum = logits[e] > maximum ? logits[e] : maximum; });
    maximum = block_max<kTokenThreads>(maximum, memory.reduced);
    for_experts(rule.experts, [&](int e) { memory.scores[e] = portable_exp(logits[e] - maximum); });
    __syncthreads();
    if (threadIdx.x == 0) {  // in double by ascending expert, as everywhere
        double sum = 0.0;
        for (int e = 0; e < rule.experts; ++e) sum += static_cast<double>(memory.scores[e]);
        memory.sum = static_cast<float>(sum);
    }
    __syncthreads();
    for_experts(rule.experts, [&](int e) { memory.scores[e] /= memory.sum; });
    __syncthreads();
}

__device__ float group_score(const float* choice, int count, GroupScore rule) {
    float first = choice[0];
    float second = -std::numeric_limits<float>::infinity();
    for (int i = 1; i < count; ++i) {
        second = fmaxf(second, fminf(first, choice[i]));
        first = fmaxf(first, choice[i]);
    }
    return rule == GroupScore::maximum || count == 1 ? first : first + second;
}

// Which experts are in groups that are kept.
__device__ void open_groups(const RouterRule& rule, TokenMemory& memory) {
    const int groups = rule.group_score == GroupScore::none ? 1 : rule.groups;
    const int size = rule.experts / groups;
    if (groups > 1)
        for_experts(groups, [&](int g) {
            memory.group[g] = group_score(memory.choice + g * size, size, rule.group_score);
        });
    __syncthreads();
    for_experts(rule.experts, [&](int e) {
        int better = 0;
        for (int g = 0; g < groups && groups > 1; ++g)
            better += beats(memory.group[g], g, memory.group[e / size], e / size) ? 1 : 0;
        memory.open[e] = groups == 1 || better < rule.top_groups;
    });
    __syncthreads();
}

__device__ void choose(const RouterRule& rule, TokenMemory& memory) {
    open_groups(rule, memory);
    for_experts(rule.experts, [&](int e) {
        int better = 0;
        for (int other = 0; other < rule.experts && memory.open[e]; ++other)
            better += memory.open[other] && beats(memory.choice[other], other, memory.choice[e], e)
                          ? 1
                          : 0;
        memory.chosen[e] = memory.open[e] && better < rule.top_k;
    });
    __syncthreads();
}

// The chosen experts, ascending, with their weights.
__device__ void write_choices(const RouterRule& rule, TokenMemory& memory, std::int32_t* expert,
                              float* weight) {
    for_experts(rule.experts, [&](int e) {
        if (!memory.chosen[e]) return;
        int place = 0;
        for (int lower = 0; lower < e; ++lower) place += memory.chosen[lower] ? 1 : 0;
        expert[place] = e;
        weight[place] = memory.scores[e];
    });
    __syncthreads();
    if (threadIdx.x != 0) return;
    float sum = 0.0f;
    for (int i = 0; i < rule.top_k; ++i) sum += weight[i];
    for (int i = 0; i < rule.top_k; ++i) {
        if (rule.normalise) weight[i] /= sum + 1e-20f;
        weight[i] *= rule.scaling;
    }
}

__global__ void route_tokens(Matrix logits, const float* bias, RouterRule rule,
                             const std::int32_t* row_of_token, ExpertPlan plan) {
    begin_kernel();
    __shared__ TokenMemory memory;
    const std::int64_t t = blockIdx.x;
    std::int32_t* expert = plan.expert + t * rule.top_k;
    float* weight = plan.weight + t * rule.top_k;
    const int place = static_cast<int>(threadIdx.x);
    if (row_of_token[t] < 0) {
        if (place < rule.top_k) {
            expert[place] = -1;
            weight[place] = 0.0f;
            plan.pair_of[t * rule.top_k + place] = -1;
        }
        return;
    }
    make_scores(row_of(logits, t), rule, memory);
    int nan = 0;
    for_experts(rule.experts, [&](int e) {
        memory.choice[e] = bias == nullptr ? memory.scores[e] : memory.scores[e] + bias[e];
        nan |= memory.choice[e] == memory.choice[e] ? 0 : 1;
    });
    if (__syncthreads_or(nan) != 0) {
        if (place < rule.top_k) {
            expert[place] = place;
            weight[place] = __int_as_float(0x7fc00000);
        }
    } else {
        choose(rule, memory);
        write_choices(rule, memory, expert, weight);
    }
}

// A block for each expert.
__global__ void place_pairs(std::int64_t choices, std::int32_t top_k, std::int32_t experts,
                            ExpertPlan plan) {
    begin_kernel();
    __shared__ std::int32_t sums[kPairThreads / 32];
    __shared__ std::int32_t found[kPairThreads / 32];
    const auto expert = static_cast<std::int32_t>(blockIdx.x);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    std::int32_t before = 0;
    for (std::int64_t i = threadIdx.x; i < choices; i += kPairThreads)
        before += plan.expert[i] >= 0 && plan.expert[i] < expert ? 1 : 0;
    std::int32_t next = block_sum<kPairThreads>(before, sums);
    if (threadIdx.x == 0) plan.indptr[expert] = next;
    for (std::int64_t first = 0; first < choices; first += kPairThreads) {
        const std::int64_t i = first + threadIdx.x;
        const bool mine = i < choices && plan.expert[i] == expert;
        const unsigned lanes = __ballot_sync(kAllLanes, mine);
        if (lane == 0) found[warp] = __popc(lanes);
        __syncthreads();
        std::int32_t pair = next + __popc(lanes & ((1u << lane) - 1));
        for (unsigned w = 0; w < kPairThreads / 32; ++w) {
            if (w < warp) pair += found[w];
            next += found[w];
        }
        if (mine) {
            plan.source_token[pair] = static_cast<std::int32_t>(i / top_k);
            plan.pair_of[i] = pair;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && expert + 1 == experts) plan.indptr[experts] = next;
}

}  // namespace

void route(Stream stream, const Matrix& logits, const float* bias, const RouterRule& rule,
           const std::int32_t* row_of, const ExpertPlan& plan) {
    static_assert(kMaxTopK <= kTokenThreads);
    if (logits.rows > 0)
        launch("route", route_tokens, static_cast<unsigned>(logits.rows), kTokenThreads, stream,
               logits, bias, rule, row_of, plan);
    launch("the places of pairs", place_pairs, static_cast<unsigned>(rule.experts), kPairThreads,
           stream, logits.rows * rule.top_k, rule.top_k, rule.experts, plan);
}

}  // namespace espalier::ops::cuda
