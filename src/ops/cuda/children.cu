// SPDX-License-Identifier: Apache-2.0
// The best children of draft nodes by their definition (ops/draft_children.hpp), a block of threads
// for each node. Every score is taken once and kept; a thread owns every 512th of them and knows
// its best. Each round takes the best of these, and its owner looks for its next.
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/node.cuh"

namespace espalier::ops::cuda {
namespace {

// What a round compares: the higher score, then the lower token.
struct Candidate {
    std::uint64_t order = 0;           // as scores; 0: none
    std::uint32_t token = 0xffffffff;  // the target's id

    __device__ bool operator==(const Candidate& other) const {
        return order == other.order && token == other.token;
    }
};

// Numbers that order as finite scores do, -0 as 0; above 0.
__device__ std::uint64_t order_of(double score) {
    const auto bits = static_cast<std::uint64_t>(__double_as_longlong(score + 0.0));
    constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

struct Scored {
    double score = -__builtin_inf();
    std::int32_t token = 0x7fffffff;
    std::int32_t index = -1;  // of its logit

    __device__ bool before(const Scored& other) const {
        return score > other.score || (score == other.score && token < other.token);
    }
    __device__ Candidate candidate() const {
        Candidate mine;
        if (index < 0) return mine;
        mine.order = order_of(score);
        mine.token = static_cast<std::uint32_t>(token);
        return mine;
    }
};

constexpr int kWarps = kNodeThreads / 32;
static_assert(kWarps <= 32, "a warp compares the warps' best");

struct ChildMemory {
    std::uint64_t sums[kWarps];
    Candidate best[2][kWarps];  // of every other round: one barrier a round is enough
    float before[kMaxDrafts];
};

__device__ Candidate best_of_warp(const Candidate& mine) {
    const auto high = static_cast<std::uint32_t>(mine.order >> 32);
    const auto low = static_cast<std::uint32_t>(mine.order);
    const std::uint32_t best_high = __reduce_max_sync(kAllLanes, high);
    const std::uint32_t best_low = __reduce_max_sync(kAllLanes, high == best_high ? low : 0u);
    const bool best = high == best_high && low == best_low;
    Candidate taken;
    taken.order = std::uint64_t{best_high} << 32 | best_low;
    taken.token = __reduce_min_sync(kAllLanes, best ? mine.token : 0xffffffffu);
    return taken;
}

__device__ Candidate best_of_block(const Candidate& mine, Candidate (&best)[kWarps]) {
    const Candidate of_warp = best_of_warp(mine);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) best[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return best_of_warp(lane < kWarps ? best[lane] : Candidate{});
}

// A node's search over its scores.
class Search {
  public:
    __device__ Search(const Row& row, const DraftVocabulary& vocabulary, double* scores)
        : row_(row), vocabulary_(vocabulary), scores_(scores) {}

    __device__ void take_scores(const Node& node, bool noisy) {
        for_each(row_.size, [&](int i) {
            const float logit = row_.logits[i];
            double score = scaled(logit, row_.inverse);
            if (noisy && logit != minus_infinity()) score += node.noise(token_of(i));
            scores_[i] = logit == minus_infinity() ? none() : score;
        });
    }
    // The best that is left of this thread's.
    __device__ Scored best() const {
        Scored best;
        for_each(row_.size, [&](int i) {
            const double score = scores_[i];
            if (score < best.score || score == none()) return;
            Scored candidate;
            candidate.score = score;
            candidate.token = token_of(i);
            candidate.index = i;
            if (candidate.before(best)) best = candidate;
        });
        return best;
    }
    __device__ void remove(int index) { scores_[index] = none(); }

  private:
    __device__ static double none() { return -__builtin_inf(); }
    __device__ std::int32_t token_of(int i) const {
        return vocabulary_.target_of != nullptr ? vocabulary_.target_of[i] : i;
    }

    const Row& row_;
    const DraftVocabulary& vocabulary_;
    double* scores_;
};

__device__ void find_children(Row row, const Node& node, const DraftVocabulary& vocabulary,
                              const DraftRule& rule, float* spare, double* scores,
                              DraftChild* children, ChildMemory& memory) {
    for_each(rule.width, [&](int i) { children[i] = DraftChild{}; });
    __syncthreads();
    if (node.wanted == kPad || !scan(row, memory.sums)) return;
    if (node.is_adjusted()) {
        adjust(row, node, vocabulary, spare, memory.before);
        row.logits = spare;
        scan(row, memory.sums);
    }
    if (row.maximum == minus_infinity()) return;
    row.scale(node.is_greedy() ? 1.0 : 1.0 / static_cast<double>(node.temperature));
    const std::uint64_t total = sum_weights(row, memory.sums);
    Search search(row, vocabulary, scores);
    search.take_scores(node, rule.coupled && !node.is_greedy());
    Scored mine = search.best();
    for (int n = 0; n < rule.width; ++n) {
        const Candidate taken = best_of_block(mine.candidate(), memory.best[n % 2]);
        if (taken.order == 0) return;
        if (!(taken == mine.candidate())) continue;
        children[n] = {mine.score, mine.token,
                       probability(row.distance(row.logits[mine.index]), total)};
        search.remove(mine.index);
        mine = search.best();
    }
}

__global__ void __launch_bounds__(kNodeThreads)
    children_kernel(Matrix logits, SamplingBatch batch, DraftVocabulary vocabulary, DraftRule rule,
                    std::int64_t first, float* spare, double* scores, DraftChild* children) {
    begin_kernel();
    __shared__ ChildMemory memory;
    const std::int64_t g = first + blockIdx.x;
    const Row row{.logits = reinterpret_cast<const float*>(logits.data) + g * logits.stride,
                  .size = static_cast<std::int32_t>(logits.cols)};
    const std::int64_t own = blockIdx.x * row_stride(logits.cols);
    find_children(row, Node(batch, g), vocabulary, rule, spare + own, scores + own,
                  children + g * rule.width, memory);
}

}  // namespace

void draft_children(Stream stream, const Matrix& logits, const SamplingBatch& batch,
                    const DraftVocabulary& vocabulary, const DraftRule& rule, DraftChild* children,
                    float* spare, double* scores) {
    apply_count_updates(stream, batch);
    for (std::int64_t first = 0; first < logits.rows; first += kNodesAtOnce) {
        const auto nodes = static_cast<unsigned>(std::min(kNodesAtOnce, logits.rows - first));
        launch("draft_children", children_kernel, nodes, kNodeThreads, stream, logits, batch,
               vocabulary, rule, first, spare, scores, children);
    }
}

}  // namespace espalier::ops::cuda
