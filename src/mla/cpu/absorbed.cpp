// SPDX-License-Identifier: Apache-2.0
// Absorbed attention: who folds what. A row's (token, head) pairs are packed into blocks; a block's
// keys are cut by logical index into splits of 512 and those into tiles. Tiles fold in ascending
// order into a split's states, splits merge in ascending order into the block's: always, so that it
// makes no difference whether one worker does all of a block or several share its splits.
#include <algorithm>

#include "mla/cpu/absorbed_block.hpp"
#include "mla/cpu/entries.hpp"

namespace espalier::mla::cpu {
namespace {

constexpr int kWaveSplits = 4;  // splits per worker between two merges when workers share blocks
constexpr int kMergeLanes = 4;  // per task: few rows leave few units, and all workers should merge
constexpr int kMergeTasks = kLanes / kMergeLanes;

// A block's splits that fall into one wave of split tasks.
struct Share {
    Block block;
    std::int64_t first_split = 0;
    std::int64_t last_split = 0;  // exclusive
    std::int64_t first_state = 0;
};

class Absorbed {
  public:
    Absorbed(OpContext& context, const TileKernels& kernels, const AbsorbedCall& call)
        : context_(context),
          plan_(kernels, call),
          block_states_(kBlockUnits * plan_.state_floats),
          workers_(context.device.workers()) {
        choose_block();
        const std::int64_t bytes = BlockScratch::bytes(kernels, plan_.dims);
        std::byte* memory = context.arena.take<std::byte>(bytes * workers_);
        scratch_ = context.arena.take<BlockScratch>(workers_);
        for (int worker = 0; worker < workers_; ++worker)
            new (scratch_ + worker) BlockScratch(kernels, plan_.dims, memory + worker * bytes);
    }

    void run() {
        // Whole blocks per worker unless the longest would keep the others waiting for half of the
        // work or more.
        if (workers_ == 1 || longest_ * workers_ * 2 <= work_)
            run_blocks();
        else
            run_splits();
    }

    static std::int64_t scratch_bytes(const TileKernels& kernels, const KeyDims& dims,
                                      int workers) {
        const std::int64_t block_states = kBlockUnits * state_floats_of(dims);
        return (BlockScratch::bytes(kernels, dims) + std::int64_t{sizeof(BlockScratch)}) * workers +
               wave_floats(block_states, workers) * 4 +
               kWaveSplits * workers * std::int64_t{sizeof(Share)} + 4 * 64;
    }

  private:
    static std::int64_t wave_floats(std::int64_t block_states, int workers) {
        return (kWaveSplits * workers + 1) * block_states;
    }
    const RaggedRows& rows() const { return plan_.call.rows; }
    RowView view(std::int32_t b) const { return view_row(rows(), b, plan_.call.lists); }

    // The number of units in a block leaves every worker two tasks; then counts blocks and work.
    void choose_block() {
        for (block_rows_ = kBlockRows;; block_rows_ /= 2) {
            blocks_ = work_ = longest_ = 0;
            std::int64_t tasks = 0;
            for (std::int32_t b = 0; b < rows().rows; ++b) {
                const RowView row = view(b);
                const std::int64_t packed = row.tokens * plan_.call.heads;
                const std::int64_t splits = (row.most_keys() + kSplitKeys - 1) / kSplitKeys;
                blocks_ += blocks_of(row);
                tasks += blocks_of(row) * splits;
                work_ += packed * splits;
                longest_ = std::max(longest_, std::min(packed, block_rows_) * splits);
            }
            if (tasks >= 2 * workers_ || block_rows_ == kLanes) return;
        }
    }
    std::int64_t blocks_of(const RowView& row) const {
        return (row.tokens * plan_.call.heads + block_rows_ - 1) / block_rows_;
    }

    Block make_block(const RowView& row, std::int64_t index) const {
        const std::int64_t first = index * block_rows_;
        const std::int64_t packed = std::min(block_rows_, row.tokens * plan_.call.heads - first);
        const std::int64_t last_token = (first + packed - 1) / plan_.call.heads;
        const std::int64_t keys = row.all_straight() ? row.prefix(last_token) : row.most_keys();
        return {row, first, static_cast<int>(packed), (keys + kSplitKeys - 1) / kSplitKeys};
    }

    // Blocks are numbered through the rows.
    Block block_at(std::int64_t index) const {
        std::int32_t b = 0;
        RowView row = view(b);
        for (; index >= blocks_of(row); row = view(++b)) index -= blocks_of(row);
        return make_block(row, index);
    }

    void run_blocks() {
        pool_of(context_).run(blocks_, [this](std::int64_t task, int worker) {
            const Block block = block_at(task);
            BlockScratch& mine = scratch_[worker];
            BlockFold fold(plan_, block, mine);
            fold.fold_split(0, 1, mine.total);
            for (std::int64_t split = 1; split < block.splits; ++split) {
                fold.fold_split(split, 1, mine.part);
                for (int unit = 0; unit < block.units(); ++unit)
                    merge(mine.part, mine.total, unit, 0, kLanes);
            }
            for (int unit = 0; unit < block.units(); ++unit)
                finish_lanes(plan_, block, mine.total, unit, 0, kLanes);
        });
    }

    // All splits of all blocks in order, some per worker at a time; after each wave its blocks
    // merge. A block that the wave leaves unfinished is carried over, and there is at most one.
    void run_splits() {
        float* states = context_.arena.take<float>(wave_floats(block_states_, workers_));
        Share* shares = context_.arena.take<Share>(kWaveSplits * workers_);
        std::int32_t row_index = 0;
        std::int64_t block_index = 0;
        std::int64_t split = 0;
        for (;;) {
            std::int64_t count = 0;
            std::int64_t used = 0;
            while (row_index < rows().rows && used < kWaveSplits * workers_) {
                const RowView row = view(row_index);
                if (block_index >= blocks_of(row)) {
                    ++row_index;
                    block_index = 0;
                    continue;
                }
                // A block without keys still has one, empty, split: its output must be written.
                Block block = make_block(row, block_index);
                block.splits = std::max<std::int64_t>(block.splits, 1);
                const std::int64_t taken =
                    std::min(block.splits - split, kWaveSplits * workers_ - used);
                shares[count++] = {block, split, split + taken, used};
                used += taken;
                split += taken;
                if (split == block.splits) {
                    split = 0;
                    ++block_index;
                }
            }
            if (count == 0) return;
            run_wave(shares, count, used, states);
        }
    }

    void run_wave(const Share* shares, std::int64_t count, std::int64_t used, float* states) {
        float* carry = states + kWaveSplits * workers_ * block_states_;
        pool_of(context_).run(used, [&](std::int64_t task, int worker) {
            std::int64_t at = 0;
            while (at + 1 < count && shares[at + 1].first_state <= task) ++at;
            const std::int64_t split = shares[at].first_split + task - shares[at].first_state;
            BlockFold(plan_, shares[at].block, scratch_[worker])
                .fold_split(split, workers_, states + task * block_states_);
        });
        pool_of(context_).run(count * kBlockUnits * kMergeTasks, [&](std::int64_t task, int) {
            const Share& share = shares[task / (kBlockUnits * kMergeTasks)];
            const auto unit = static_cast<int>(task / kMergeTasks % kBlockUnits);
            const auto first = static_cast<int>(task % kMergeTasks) * kMergeLanes;
            if (unit < share.block.units()) merge_lanes(share, unit, first, states, carry);
        });
        const Share& last = shares[count - 1];
        if (last.last_split < last.block.splits && last.first_split == 0)
            std::copy_n(states + last.first_state * block_states_, block_states_, carry);
    }

    void merge_lanes(const Share& share, int unit, int first, float* states, float* carry) const {
        float* const own = states + share.first_state * block_states_;
        const bool continues = share.first_split > 0;
        float* const total = continues ? carry : own;
        const std::int64_t parts = share.last_split - share.first_split;
        for (std::int64_t i = continues ? 0 : 1; i < parts; ++i)
            merge(own + i * block_states_, total, unit, first, first + kMergeLanes);
        if (share.last_split == share.block.splits)
            finish_lanes(plan_, share.block, total, unit, first, first + kMergeLanes);
    }

    // Lanes [first, last) of a unit of one block's states into those of another.
    void merge(float* part, float* total, int unit, int first, int last) const {
        plan_.kernels.merge(plan_.state_at(part, unit), plan_.state_at(total, unit),
                            static_cast<int>(plan_.dims.latent), first, last);
    }

    OpContext& context_;
    AbsorbedPlan plan_;
    std::int64_t block_states_;  // floats of a block's states
    int workers_;
    BlockScratch* scratch_ = nullptr;
    std::int64_t block_rows_ = 0;
    std::int64_t blocks_ = 0;
    std::int64_t work_ = 0;     // packed rows · splits
    std::int64_t longest_ = 0;  // the most of one block
};

}  // namespace

void absorbed(OpContext& context, const TileKernels& kernels, const AbsorbedCall& call) {
    const Arena::Mark mark(context.arena);
    const OutputRows output{call.out, call.out_dtype, call.lse, call.kv.dims.latent};
    for (std::int64_t packed = call.rows.q_indptr[call.rows.rows] * std::int64_t{call.heads};
         packed < call.rows.token_end * call.heads; ++packed)
        output.nothing(packed);
    Absorbed(context, kernels, call).run();
}

std::int64_t absorbed_scratch(const TileKernels& kernels, int workers) {
    std::int64_t most = 0;
    for (const KeyDims& dims : kKeyDims)
        most = std::max(most, Absorbed::scratch_bytes(kernels, dims, workers));
    return most;
}

}  // namespace espalier::mla::cpu
