// SPDX-License-Identifier: Apache-2.0
// Draft trees by their definition (ops/draft_growth.hpp). A warp grows a tree: the kept nodes and
// the children of each node of the frontier are descending lists, and the warp merges them, a lane
// holding the heads of two. One block lays all frontiers into the next batch.
#include <cstdint>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "base/portable_math.hpp"
#include "ops/cuda/block.cuh"
#include "ops/cuda/kernels.hpp"

namespace espalier::ops::cuda {
namespace {

constexpr int kTreesPerBlock = 4;
constexpr int kLayThreads = 512;
constexpr std::int64_t kCountWords = sizeof(TokenCount) / sizeof(std::uint32_t);

struct TreeMemory {
    GrowingNode before[kMaxNodes], after[kMaxNodes];
    std::int32_t now[kMaxNodes];       // where a node before is after
    std::int32_t frontier[kMaxNodes];  // nodes by the order of their places
};

// The children of one node of the frontier, and which of them is next.
struct ChildList {
    const DraftChild* children = nullptr;
    std::int32_t parent = 0, count = 0, next = 0;
    double total = 0;  // coupled: of their weights
    bool coupled = false;
    float score = 1.0f;  // of the next
    double above = 0, path = -1;

    __device__ void begin(const DraftChild* first, std::int32_t most, bool noisy,
                          const GrowingNode& node, std::int32_t index) {
        children = first;
        parent = index;
        coupled = noisy;
        above = node.path;
        while (count < most && children[count].token >= 0) {
            if (coupled) total += portable_exp(children[count].score - children[0].score);
            ++count;
        }
        look();
    }
    __device__ void look() {
        path = -1;
        if (next >= count) return;
        const DraftChild& child = children[next];
        const float raw =
            coupled ? static_cast<float>(portable_exp(child.score - children[0].score) / total)
                    : child.probability;
        score = raw < score ? raw : score;
        path = above * static_cast<double>(score);
    }
    __device__ void advance() {
        ++next;
        look();
    }
};

// The head with the longest path over all lanes, ties to the first list; list -1: none is left.
struct Head {
    double path = -1;
    std::int32_t list = -1;
};
__device__ Head best_head(double path, std::int32_t list) {
    Head best{path, path < 0 ? -1 : list};
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const double other = __shfl_xor_sync(kAllLanes, best.path, step);
        const std::int32_t other_list = __shfl_xor_sync(kAllLanes, best.list, step);
        const bool better =
            other > best.path || (other == best.path && static_cast<std::uint32_t>(other_list) <
                                                            static_cast<std::uint32_t>(best.list));
        if (better) best = {other, other_list};
    }
    return best;
}

class Tree {
  public:
    __device__ Tree(const DraftGrowth& growth, std::int32_t tree, TreeMemory& memory)
        : rule_(growth.trees[tree].rule),
          state_(growth.trees[tree].state),
          nodes_(growth.nodes + std::int64_t{tree} * kMaxNodes),
          memory_(memory) {}

    __device__ bool ended() const { return state_.frontier == 0; }

    __device__ void load() {
        const std::int32_t first = state_.places - state_.frontier;
        for (std::int32_t i = lane(); i < state_.nodes; i += 32) {
            GrowingNode node = nodes_[i];
            if (state_.level == 0) {
                node = {};
                node.token = rule_.root_token;
                node.place = 0;
                node.row = rule_.root_row;
            }
            memory_.before[i] = node;
            if (node.place >= first) memory_.frontier[node.place - first] = i;
        }
        __syncwarp();
    }

    // The likeliest of the kept nodes and the children, into memory.after.
    __device__ void merge(const FoundChildren& found) {
        const bool noisy = rule_.coupled != 0;
        ChildList lists[2];
        for (int i = 0; i < 2; ++i) {
            const std::int32_t list = lane() + 32 * i;
            if (list >= state_.frontier) continue;
            const std::int32_t index = memory_.frontier[list];
            const GrowingNode& node = memory_.before[index];
            lists[i].begin(
                (noisy ? found.coupled : found.plain) + std::int64_t{node.row} * found.width,
                rule_.children, noisy, node, index);
        }
        if (lane() == 0) {
            memory_.after[0] = memory_.before[0];
            memory_.now[0] = 0;
        }
        std::int32_t kept = 1, old = 1;
        for (; kept < rule_.nodes; ++kept) {
            __syncwarp();
            const bool second = lists[1].path > lists[0].path;
            const Head child =
                best_head(second ? lists[1].path : lists[0].path, lane() + (second ? 32 : 0));
            const double old_path = old < state_.nodes ? memory_.before[old].path : -1.0;
            if (child.list < 0 && old >= state_.nodes) break;
            if (old < state_.nodes && old_path >= child.path) {
                if (lane() == 0) keep_old(old, kept);
                ++old;
            } else if (child.list % 32 == lane()) {
                take_child(child.list < 32 ? lists[0] : lists[1], kept);
            }
        }
        __syncwarp();
        state_.nodes = kept;
    }

    __device__ void choose_frontier() {
        const std::int32_t level = ++state_.level;
        const std::int32_t wide = rule_.places - state_.places;
        const std::int32_t room =
            level >= rule_.depth ? 0 : (wide < rule_.width ? wide : rule_.width);
        std::uint64_t eligible = 0;
        for (int i = 0; i < 2; ++i) {
            const std::int32_t index = lane() + 32 * i;
            const bool may = index < state_.nodes && memory_.after[index].depth == level &&
                             memory_.after[index].path >= kLeastPath;
            eligible |= std::uint64_t{__ballot_sync(kAllLanes, may)} << (32 * i);
        }
        for (int i = 0; i < 2; ++i) {
            const std::int32_t index = lane() + 32 * i;
            const std::uint64_t bit = std::uint64_t{1} << index;
            const std::int32_t rank = __popcll(eligible & (bit - 1));
            if ((eligible & bit) == 0 || rank >= room) continue;
            GrowingNode& node = memory_.after[index];
            node.place = state_.places + rank;
            node.word = memory_.after[node.parent].word | std::uint64_t{1} << node.place;
        }
        const std::int32_t count = __popcll(eligible);
        state_.frontier = count < room ? count : (room > 0 ? room : 0);
        state_.places += state_.frontier;
        __syncwarp();
    }

    __device__ void store(const DraftGrowth& growth, std::int32_t tree) const {
        DraftedNode* drafted = growth.drafted + std::int64_t{tree} * kMaxDrafts;
        for (std::int32_t i = lane(); i < state_.nodes; i += 32) {
            const GrowingNode& node = memory_.after[i];
            nodes_[i] = node;
            if (i > 0) drafted[i - 1] = {node.token, node.parent, node.score};
        }
        if (lane() == 0) growth.trees[tree].state = state_;
    }

  private:
    __device__ static std::int32_t lane() { return static_cast<std::int32_t>(threadIdx.x % 32); }

    __device__ void keep_old(std::int32_t index, std::int32_t kept) {
        GrowingNode node = memory_.before[index];
        node.parent = memory_.now[node.parent];
        memory_.after[kept] = node;
        memory_.now[index] = kept;
    }
    __device__ void take_child(ChildList& list, std::int32_t kept) {
        GrowingNode node;
        node.token = list.children[list.next].token;
        node.parent = memory_.now[list.parent];
        node.depth = memory_.before[list.parent].depth + 1;
        node.score = list.score;
        node.path = list.path;
        memory_.after[kept] = node;
        list.advance();
    }

    GrowthRule rule_;
    GrowthState state_;
    GrowingNode* nodes_;
    TreeMemory& memory_;
};

__global__ void __launch_bounds__(32 * kTreesPerBlock)
    grow_kernel(DraftGrowth growth, FoundChildren found) {
    begin_kernel();
    __shared__ TreeMemory memory[kTreesPerBlock];
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x / 32);
    const std::int32_t index = static_cast<std::int32_t>(blockIdx.x) * kTreesPerBlock + warp;
    if (index >= growth.head->trees) return;
    Tree tree(growth, index, memory[warp]);
    if (tree.ended()) return;
    tree.load();
    tree.merge(found);
    tree.choose_frontier();
    tree.store(growth, index);
}

// --- the next batch -----------------------------------------------------------------------------

// Counts of the tokens on a node's path, by a warp.
__device__ ListRange lay_counts(const GrowingNode* nodes, const GrowingNode& node,
                                const SamplingBatch& from, ListRange committed,
                                const FrontierDraws& draws, std::int64_t g) {
    const auto lane = static_cast<std::uint32_t>(threadIdx.x % 32);
    const auto first = draws.changed + static_cast<std::uint32_t>(g * kMaxDrafts * kCountWords);
    auto* const entries = reinterpret_cast<TokenCount*>(draws.batch.lists + first);
    std::uint32_t count = 0;
    for (GrowingNode at = node; at.parent >= 0; at = nodes[at.parent]) {
        std::uint32_t entry = 0;
        while (entry < count && entries[entry].token != at.token) ++entry;
        if (entry == count) {
            std::uint32_t found = committed.count;
            for (std::uint32_t i = lane; i < committed.count; i += 32)
                if (from.counts[committed.first + i].token == at.token) found = i;
            found = __reduce_min_sync(kAllLanes, found);
            if (lane == 0) {
                TokenCount fresh{};
                fresh.token = at.token;
                entries[count] =
                    found < committed.count ? from.counts[committed.first + found] : fresh;
            }
            ++count;
        }
        __syncwarp();
        if (lane == 0) ++entries[entry].in_output;
        __syncwarp();
    }
    return {first, count};
}

__device__ void lay_draw(const SamplingBatch& from, const GrowthRule& rule, std::int32_t depth,
                         const SamplingBatch& to, std::int64_t g) {
    const std::int32_t root = rule.root_row;
    const auto lists = static_cast<std::uint32_t>(from.lists - to.lists);
    const auto moved = [&](ListRange range) { return ListRange{range.first + lists, range.count}; };
    to.parameters[g] = from.parameters[root];
    to.position[g] = rule.root_position + 1 + depth;
    to.choice[g] = from.choice[root];
    to.wanted[g] = kDraw;
    to.logprob[g] = 0;
    to.biases[g] = moved(from.biases[root]);
    to.banned[g] = depth < rule.banned_levels ? moved(from.banned[root]) : ListRange{};
    to.committed[g] = from.committed[root];
    to.allowed[g] = -1;
    to.reported[g] = ListRange{};
    to.changed[g] = ListRange{};
}

__device__ void lay_node(const GrowthRule& rule, const GrowingNode* nodes, const GrowingNode& node,
                         const FrontierBatch& batch, std::int32_t row, std::int64_t g) {
    const std::int64_t place = rule.root_position + node.place;
    const std::int64_t page =
        batch.block_tables[rule.table_row * batch.block_stride + place / batch.page_tokens];
    batch.tokens[g] = node.token;
    batch.position[g] = rule.root_position + node.depth;
    batch.slot[g] = page * batch.page_tokens + place % batch.page_tokens;
    batch.row_of[g] = row;
    batch.words[g] = node.word;
    batch.parent_row[g] = nodes[node.parent].row;
}

// A tree's frontier, by a warp; g: of its first node.
__device__ void lay_tree(const DraftGrowth& growth, std::int32_t tree, const FrontierBatch& batch,
                         const FrontierDraws& draws, std::int32_t row, std::int64_t g) {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const GrowthRule rule = growth.trees[tree].rule;
    const GrowthState state = growth.trees[tree].state;
    const SamplingBatch& from = growth.head->roots;
    GrowingNode* const nodes = growth.nodes + std::int64_t{tree} * kMaxNodes;
    const std::int32_t first = state.places - state.frontier;
    if (lane == 0) {
        batch.q_indptr[row] = static_cast<std::int32_t>(g);
        batch.kv_len[row] = rule.root_position + state.places;
        batch.tail_len[row] = state.places;
        batch.table_row[row] = rule.table_row;
        batch.mask[row] = batch.tree_mask;
    }
    for (std::int32_t i = lane; i < state.nodes; i += 32) {
        const GrowingNode node = nodes[i];
        if (node.place < first) continue;
        const std::int64_t at = g + node.place - first;
        lay_node(rule, nodes, node, batch, row, at);
        lay_draw(from, rule, node.depth, draws.batch, at);
        nodes[i].row = static_cast<std::int32_t>(at);
    }
    const DrawParameters& draw = from.parameters[rule.root_row];
    if (draw.repetition_penalty == 1.0f && draw.frequency_penalty == 0.0f &&
        draw.presence_penalty == 0.0f)
        return;
    __syncwarp();
    for (std::int32_t i = 0; i < state.nodes; ++i) {
        if (nodes[i].place < first) continue;
        const std::int64_t at = g + nodes[i].place - first;
        const ListRange range =
            lay_counts(nodes, nodes[i], from, from.committed[rule.root_row], draws, at);
        if (lane == 0) draws.batch.changed[at] = range;
    }
}

__device__ void pad_row(const FrontierBatch& batch, std::int64_t row) {
    batch.kv_len[row] = 0;
    batch.tail_len[row] = 0;
    batch.table_row[row] = 0;
    batch.mask[row] = batch.pad_mask;
}

__device__ void pad_node(const FrontierBatch& batch, const SamplingBatch& to, std::int64_t g) {
    batch.tokens[g] = 0;
    batch.position[g] = 0;
    batch.slot[g] = -1;
    batch.row_of[g] = -1;
    batch.words[g] = 0;
    batch.parent_row[g] = -1;
    to.parameters[g] = DrawParameters{};
    to.position[g] = 0;
    to.choice[g] = 0;
    to.wanted[g] = kPad;
    to.logprob[g] = 0;
    to.biases[g] = to.banned[g] = to.committed[g] = to.changed[g] = to.reported[g] = ListRange{};
    to.allowed[g] = -1;
}

struct LayMemory {
    std::uint64_t sums[kLayThreads / 32];
    std::uint64_t before[kLayThreads];  // of each tree: rows << 32 | nodes
};

__global__ void __launch_bounds__(kLayThreads)
    lay_kernel(DraftGrowth growth, FrontierBatch batch, FrontierDraws draws) {
    begin_kernel();
    __shared__ LayMemory memory;
    const auto trees = static_cast<std::int32_t>(growth.head->trees);
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    std::uint64_t so_far = 0;
    for (std::int32_t begin = 0; begin < trees; begin += kLayThreads) {
        const std::int32_t own = begin + thread;
        const std::int32_t frontier = own < trees ? growth.trees[own].state.frontier : 0;
        const std::uint64_t mine =
            frontier > 0 ? std::uint64_t{1} << 32 | static_cast<std::uint32_t>(frontier) : 0;
        const std::uint64_t before = so_far + sum_before<kLayThreads>(mine, memory.sums);
        memory.before[thread] = before;
        so_far += block_sum<kLayThreads>(mine, memory.sums);
        for (std::int32_t i = thread / 32; i < kLayThreads && begin + i < trees;
             i += kLayThreads / 32)
            if (growth.trees[begin + i].state.frontier > 0)
                lay_tree(growth, begin + i, batch, draws,
                         static_cast<std::int32_t>(memory.before[i] >> 32),
                         static_cast<std::int64_t>(memory.before[i] & 0xffffffffu));
        __syncthreads();
    }
    const auto rows = static_cast<std::int64_t>(so_far >> 32);
    const auto nodes = static_cast<std::int64_t>(so_far & 0xffffffffu);
    for (std::int64_t row = rows + thread; row <= batch.rows; row += kLayThreads) {
        batch.q_indptr[row] = static_cast<std::int32_t>(nodes);
        if (row < batch.rows) pad_row(batch, row);
    }
    for (std::int64_t g = nodes + thread; g < batch.capacity; g += kLayThreads)
        pad_node(batch, draws.batch, g);
    if (thread == 0) *draws.batch.updates = ListRange{};
}

}  // namespace

void grow_trees(Stream stream, const DraftGrowth& growth, const FoundChildren& found) {
    const auto blocks =
        static_cast<unsigned>((growth.capacity + kTreesPerBlock - 1) / kTreesPerBlock);
    launch("grow_trees", grow_kernel, blocks, 32 * kTreesPerBlock, stream, growth, found);
}

void lay_frontiers(Stream stream, const DraftGrowth& growth, const FrontierBatch& batch,
                   const FrontierDraws& draws) {
    launch("lay_frontiers", lay_kernel, 1, kLayThreads, stream, growth, batch, draws);
}

}  // namespace espalier::ops::cuda
