// SPDX-License-Identifier: Apache-2.0
// The best children of draft nodes by their definition (ops/draft_children.hpp), a block of threads
// for each node, or a cluster of blocks for few nodes of a large vocabulary.
//
// Two passes over the logits. The first finds the best token of each of `width` groups or more, so
// the least score of these is one that at least `width` tokens reach. The second sums up the
// weights and lists all tokens that reach it: about width · ln(width). A token's place is how many
// of the list stand before it. A list that is too long says a better score, and is made again.
#include "base/cuda/cluster.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/node.cuh"

namespace espalier::ops::cuda {
namespace {

static_assert(kMaxDrafts <= kGroups, "a group's best for each child");

// A token and how it is compared: the higher score, then the lower id.
struct alignas(16) Candidate {
    double score;
    std::int32_t token;  // the target's id
    float logit;

    __device__ bool before(const Candidate& other) const {
        return score > other.score || (score == other.score && token < other.token);
    }
};

constexpr int kListed = kNodeThreads;

struct ChildMemory {
    GroupMemory scanned[2];  // raw, adjusted
    GroupMemory scored;      // with noise
    Candidate list[kListed];
    Candidate least;         // that is still listed
    std::uint64_t total;     // of weights
    std::uint32_t count[2];  // of candidates, also of those that the list has no room for; of every
                             // other round
    float before[kMaxDrafts];
};

// Numbers that order as finite scores and -inf do, -0 as 0, and back.
constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
__device__ std::uint64_t order_of(double score) {
    const auto bits = static_cast<std::uint64_t>(__double_as_longlong(score + 0.0));
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
__device__ double score_of(std::uint64_t order) {
    return __longlong_as_double(
        static_cast<long long>((order & kSign) != 0 ? order & ~kSign : ~order));
}

// A node's tokens and their scores.
class Search {
  public:
    __device__ Search(const Row& row, const Node& node, const DraftVocabulary& vocabulary,
                      bool noisy)
        : row_(row), node_(node), vocabulary_(vocabulary), noisy_(noisy) {}

    // A score that at least `width` tokens reach. Where scores have noise in them, of its tokens a
    // thread knows that of the largest logit.
    __device__ Candidate first_least(const GroupMemory& scanned, GroupMemory& scored, int width,
                                     const NodeBlocks& blocks) const {
        if (noisy_) {
            const float logit = value_of(static_cast<std::uint32_t>(row_.own_best >> 32));
            double score = scaled(logit, row_.inverse);
            if (logit != minus_infinity())
                score +=
                    noise_of(node_.noise_word(token_of(static_cast<int>(index_of(row_.own_best)))));
            scored.share(order_of(score), blocks);
        }
        const std::uint64_t least = least_of_groups(noisy_ ? scored : scanned, width, blocks);
        const float logit = value_of(static_cast<std::uint32_t>(least >> 32));
        return {noisy_ ? score_of(least) : scaled(logit, row_.inverse), 0x7fffffff, 0.0f};
    }

    // Adds the block's tokens that are not behind `least` to the list, which is the first block's;
    // the sum of its weights, if asked for.
    __device__ void list(const Candidate& least, bool weigh, ChildMemory& memory,
                         std::uint32_t* count) const {
        std::uint64_t sum = 0;
        for_own(row_, [&](int i) {
            const float logit = row_.logits[i];
            if (logit == minus_infinity()) return;
            Candidate mine = {scaled(logit, row_.inverse), 0, logit};
            if (weigh) sum += weight_of(mine.score - row_.largest);
            if (!noisy_ && mine.score < least.score) return;
            mine.token = token_of(i);
            if (noisy_ && !add_noise(mine, least.score)) return;
            if (least.before(mine)) return;
            const std::uint32_t place = atomicAdd(in_block(count, 0), 1u);
            if (place < kListed) *in_block(&memory.list[place], 0) = mine;
        });
        if (weigh) add_to_first(sum, &memory.total);
    }

  private:
    // The least of the best of as many groups as there are children, or a few more: those of every
    // 2nd, 4th … lane of the groups that were shared.
    __device__ static std::uint64_t least_of_groups(const GroupMemory& memory, int width,
                                                    const NodeBlocks& blocks) {
        const unsigned lane = threadIdx.x % 32;
        std::uint64_t best = memory.of(lane, blocks), other = memory.of(lane + 32, blocks);
        if (width <= 32) best = other = larger(best, other);
#pragma unroll 1
        for (int step = 16; step >= width; step /= 2)
            best = other = larger(best, __shfl_xor_sync(kAllLanes, best, step));
        std::uint64_t least = best < other ? best : other;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const std::uint64_t there = __shfl_xor_sync(kAllLanes, least, step);
            least = there < least ? there : least;
        }
        return least;
    }
    __device__ std::int32_t token_of(int i) const {
        return vocabulary_.target_of != nullptr ? vocabulary_.target_of[i] : i;
    }
    // As in cpu/children.cpp: −ln u ≥ 1 − u, so a token can reach the least score only if 1 − u ≤
    // exp(scaled − least), and few logarithms are left to take. Where scores are so large that
    // noise is rounded away, equal ones are decided by ids: the margin knows nothing of them.
    __device__ bool add_noise(Candidate& mine, double least) const {
        constexpr float kMargin = 1.0f + 0x1p-16f;
        const std::uint32_t word = node_.noise_word(mine.token);
        const float one_minus_u = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;
        if (fabs(least) < 0x1p29 &&
            portable_exp(static_cast<float>(mine.score - least)) * kMargin - one_minus_u < 0.0f)
            return false;
        mine.score += noise_of(word);
        return true;
    }

    const Row& row_;
    const Node& node_;
    const DraftVocabulary& vocabulary_;
    bool noisy_;
};

// By the first block: the list's candidates to their places among the children or, where the list
// is too long, the last of the best to all blocks.
__device__ void place(const Row& row, const DraftRule& rule, std::uint32_t count,
                      const NodeBlocks& blocks, DraftChild* children, ChildMemory& memory) {
    const auto thread = static_cast<int>(threadIdx.x);
    const int listed = min(static_cast<int>(count), kListed);
    if (thread < listed) {
        const Candidate mine = memory.list[thread];
        int rank = 0;
#pragma unroll 4
        for (int i = 0; i < listed; ++i) rank += memory.list[i].before(mine) ? 1 : 0;
        if (count > kListed && rank == rule.width - 1)
            for (unsigned block = 0; block < blocks.count; ++block)
                *in_block(&memory.least, block) = mine;
        if (count <= kListed && rank < rule.width)
            children[rank] = {mine.score, mine.token,
                              probability(row.distance(mine.logit), memory.total)};
    }
    if (thread >= listed && thread < rule.width) children[thread] = DraftChild{};
}

// The largest logit, of the raw logits or of what is left of them. False: the node has no child.
__device__ bool look(Row& row, const Node& node, const DraftVocabulary& vocabulary,
                     const NodeBlocks& blocks, float* spare, ChildMemory& memory, int& pass) {
    if (node.wanted == kPad) return false;
#pragma unroll 1
    for (pass = 0;; ++pass) {
        if (!scan(row, blocks, memory.scanned[pass]) && pass == 0) return false;
        if (pass == 1 || !node.is_adjusted()) return row.maximum != minus_infinity();
        adjust(row, node, vocabulary, spare, memory.before);
        row.logits = spare;
    }
}

__global__ void __launch_bounds__(kNodeThreads)
    children_kernel(Matrix logits, SamplingBatch batch, DraftVocabulary vocabulary, DraftRule rule,
                    std::int64_t first, float* spare, DraftChild* children) {
    begin_kernel();
    __shared__ ChildMemory memory;
    const NodeBlocks blocks;
    const std::int64_t own = blockIdx.x / blocks.count;
    const std::int64_t g = first + own;
    children += g * rule.width;
    if (threadIdx.x == 0) {
        memory.total = 0;
        memory.count[0] = memory.count[1] = 0;
    }
    if (blocks.count > 1) blocks.meet();  // all of them have started
    const Node node(batch, g);
    update_counts(batch, node);
    Row row(logits, g, blocks);
    int pass = 0;
    if (!look(row, node, vocabulary, blocks, spare + own * row_stride(logits.cols), memory, pass)) {
        if (blocks.rank == 0) for_each(rule.width, [&](int i) { children[i] = DraftChild{}; });
        return;
    }
    row.scale(node.is_greedy() ? 1.0 : 1.0 / static_cast<double>(node.temperature));
    const Search search(row, node, vocabulary, rule.coupled && !node.is_greedy());
    Candidate least = search.first_least(memory.scanned[pass], memory.scored, rule.width, blocks);
#pragma unroll 1
    for (int round = 0;; ++round) {
        search.list(least, round == 0, memory, &memory.count[round % 2]);
        blocks.meet();
        const std::uint32_t count = *in_block(&memory.count[round % 2], 0);
        if (blocks.rank == 0) place(row, rule, count, blocks, children, memory);
        if (blocks.count > 1 || count > kListed) blocks.meet();  // the first has been read
        if (count <= kListed) return;
        least = memory.least;
        if (threadIdx.x == 0) memory.count[round % 2] = 0;
    }
}

}  // namespace

void draft_children(Stream stream, const Matrix& logits, const SamplingBatch& batch,
                    const DraftVocabulary& vocabulary, const DraftRule& rule, DraftChild* children,
                    float* spare) {
    for (std::int64_t first = 0; first < logits.rows; first += kNodesAtOnce) {
        const std::int64_t nodes = std::min(kNodesAtOnce, logits.rows - first);
        const unsigned blocks = node_blocks(stream, nodes, logits.cols);
        launch("draft_children", children_kernel,
               {.grid = static_cast<unsigned>(nodes) * blocks,
                .threads = kNodeThreads,
                .cluster = static_cast<int>(blocks)},
               stream, logits, batch, vocabulary, rule, first, spare, children);
    }
}

}  // namespace espalier::ops::cuda
