// SPDX-License-Identifier: Apache-2.0
// The plan of a step: a warp for each part. All of them find the partition for themselves, which
// costs less than to wait for one that does (with one thread block, whose 32 warps took the parts
// in turn, a plan took twice as long).
//
// Invariant: what takes time is not that the code is cold (a second run in the same kernel took 80
// % of the first) but one thing waiting for another. So a lane reads its row once (up to 32 rows),
// warps add in one instruction, no division has 64 bits, and the lane that has a part's first row
// writes the part down by itself: in a step of one token 6.3 µs instead of 9.2.
#include "mla/cuda/absorbed/invariant_schedule.cuh"

namespace espalier::mla::cuda {
namespace {

constexpr int kPlanThreads = 256;
constexpr int kPlanWarps = kPlanThreads / 32;

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const __grid_constant__ AbsorbedParams p) {
    const int part = blockIdx.x * kPlanWarps + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    Partition partition = make_partition(p);
    if (part < p.parts) {
        const PartPlan plan = plan_part(p, partition, part);
        if (lane == 0) p.part_plans[part] = plan;
    }
    if (part != 0) return;
    list_merges(p, partition);
    if (lane == 0) *p.partition = partition;
}

// --- invariant ----------------------------------------------------------------------------------

// Total work of rows: one row, a lane's, or all of the call's.
struct Work {
    long long line = 0;
    long long slots = 0;
    int blocks = 0;
    int splits[kSmallBlocks] = {};           // of all blocks, if they were small
    int most_splits = 0, cost_of_split = 1;  // of the block that costs most
};

// Blocks of a group that are a launch's: first … end - 1.
struct BlockRun {
    int first = 0, end = 0;
};

// The launch of a call that has one: all blocks.
struct OnlyLaunch {
    static constexpr bool kAll = true;
    __device__ static bool all() { return true; }
    __device__ static int first_slot() { return 0; }
    __device__ BlockRun blocks(const Group& group, int block_shift, long long) const {
        return {0, group_blocks(group, block_shift)};
    }
};
// One of several: blocks whose first slot, of all that the call's rows have, lies in begin … end
// - 1. It counts its own slots from `begin` on.
struct LaunchOfSeveral {
    static constexpr bool kAll = false;
    static constexpr int kEnd = 0x7fffffff;  // no slot lies behind it
    int begin = 0, end = kEnd;

    __device__ bool all() const { return begin == 0 && end == kEnd; }
    __device__ int first_slot() const { return begin; }

    // slot: the group's first.
    __device__ BlockRun blocks(const Group& group, int block_shift, long long slot) const {
        return {blocks_below(group, block_shift, begin - slot),
                blocks_below(group, block_shift, end - slot)};
    }

  private:
    // Number of the group's blocks that begin less than `slots` behind it.
    __device__ static int blocks_below(const Group& group, int block_shift, long long slots) {
        const int blocks = group_blocks(group, block_shift);
        if (slots <= 0) return 0;
        if (group.splits == 1) return blocks;
        const long long of_block = static_cast<long long>(group.splits)
                                   << (block_shift - kLeastShift);
        if (slots > (blocks - 1) * of_block) return blocks;
        // Both are below 2^31 here.
        return ceil_div(static_cast<int>(slots), static_cast<int>(of_block));
    }
};

// slot: the row's first.
template <typename Launch>
__device__ void add_row(const AbsorbedParams& p, const Partition& partition, const Launch& launch,
                        int row, const RowShape& shape, long long slot, Work& work) {
    constexpr int kPlenty = 1 << 20;  // splits: more than there are parts, whatever is added
    const RowGroups groups(p, row, shape);
    const int times = Launch::kAll && groups.alike() ? groups.count() : 1;
#pragma unroll 1
    for (int index = 0; index < groups.count(); index += times) {
        const Group group = groups.at(index);
        const BlockRun run = launch.blocks(group, partition.block_shift, slot);
        const int blocks = run.end - run.first;
        const long long slots = times * group_slots(group);
        slot += slots;
        work.slots += slots;
        if (blocks == 0) continue;
        const bool large = group.history < 0 && group.tiles * kTileKeys >= kLongSplit;
#pragma unroll
        for (int i = 0; i < kSmallBlocks; ++i) {
            const int small = group_blocks(group, kLeastShift + i);
            const int splits = large && small > blocks ? kPlenty : times * small * group.splits;
            work.splits[i] = min(work.splits[i] + min(splits, kPlenty), kPlenty);
        }
        work.line += times * blocks * block_length(p, partition, group);
        work.blocks += times * blocks;
        if (group.splits * split_cost(group) > work.most_splits * work.cost_of_split) {
            work.most_splits = group.splits;
            work.cost_of_split = split_cost(group);
        }
    }
}

// Sums over the warp's lanes; of 64 bits exact below 2^42.
__device__ int sum_of_lanes(int value) { return __reduce_add_sync(~0u, value); }
__device__ long long sum_of_lanes(long long value) {
    const unsigned low = __reduce_add_sync(~0u, static_cast<unsigned>(value) & 0xffffu);
    const unsigned high = __reduce_add_sync(~0u, static_cast<unsigned>(value >> 16));
    return (static_cast<long long>(high) << 16) + low;
}
__device__ Work work_of_call(const Work& mine) {
    Work sum;
    sum.line = sum_of_lanes(mine.line);
    sum.slots = sum_of_lanes(mine.slots);
    sum.blocks = sum_of_lanes(mine.blocks);
#pragma unroll
    for (int i = 0; i < kSmallBlocks; ++i) sum.splits[i] = sum_of_lanes(mine.splits[i]);
    const int cost = mine.most_splits * mine.cost_of_split;
    const int largest = __reduce_max_sync(~0u, cost);
    const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, cost == largest))) - 1;
    sum.most_splits = __shfl_sync(~0u, mine.most_splits, owner);
    sum.cost_of_split = __shfl_sync(~0u, mine.cost_of_split, owner);
    return sum;
}

// Small blocks if each of their splits has a part (`small`: they may be). Otherwise pieces of equal
// length, one to a part, if that costs at most 8 % over perfect balance: queries come once, and
// merges wait for no part that has other work. `line` is the partition without pieces.
__device__ Partition with_pieces(const AbsorbedParams& p, const Work& work, const Partition& line,
                                 bool small) {
    Partition even = line;
    even.length = 1;
#pragma unroll
    for (int i = 0; i < kSmallBlocks && kLeastShift + i < p.block_shift; ++i) {
        if (!small || work.splits[i] > p.parts) continue;
        even.block_shift = kLeastShift + i;
        even.piece = 1;  // a split
        return even;
    }
    if (work.blocks == 0 || work.blocks > p.parts) return line;
    const long long piece =
        static_cast<long long>(ceil_div(work.most_splits, p.parts / work.blocks)) *
        work.cost_of_split;
    if (piece * 25 > line.length * 27ll && piece != work.cost_of_split) return line;
    even.piece = static_cast<int>(piece);
    return even;
}
__device__ Partition without_pieces(const AbsorbedParams& p, const Work& work) {
    Partition line;
    line.block_shift = p.block_shift;
    // Capacities leave room for all rows that follow one another. Where they do not, nothing is
    // computed.
    constexpr long long kMost = 0x7fffffff;
    if (work.line > kMost || work.slots > kMost) return line;
    const auto parts = static_cast<unsigned>(p.parts);
    line.slots = static_cast<int>(work.slots);
    line.total = static_cast<int>(work.line);
    line.length = max(static_cast<int>((static_cast<unsigned>(work.line) + parts - 1) / parts), 1);
    return line;
}

// Rows of a lane: a run of them. Of a single one the shape is kept.
struct LaneRows {
    int first, end;
    RowShape shape;  // of the first

    __device__ LaneRows(const AbsorbedParams& p, int lane)
        : first(lane * rows_per_lane(p)), end(min(first + rows_per_lane(p), p.rows.rows)) {
        if (first < end) shape = row_shape(p, first);
    }
    // slot: the first of the lane's.
    template <typename Launch>
    __device__ Work work(const AbsorbedParams& p, const Partition& partition, const Launch& launch,
                         long long slot) const {
        Work sum;
        RowShape of_row = shape;
#pragma unroll 1
        for (int row = first; row < end; ++row) {
            if (row > first) of_row = row_shape(p, row);
            add_row(p, partition, launch, row, of_row, slot + sum.slots, sum);
        }
        return sum;
    }
};

// The whole warp. `mine`: what is left as the lane's own work of the launch. slot: the first of the
// lane's.
template <typename Launch>
__device__ Partition make_invariant_partition(const AbsorbedParams& p, const Launch& launch,
                                              const LaneRows& rows, int slot, Work& mine) {
    Partition partition, line;
    partition.block_shift = p.block_shift;
    Work of_line;
#pragma unroll 1
    for (bool first = true;; first = false) {
        mine = rows.work(p, partition, launch, slot);
        if (first) {
            const Work work = work_of_call(mine);
            of_line = mine;
            line = without_pieces(p, work);
            if (line.total == 0) return line;
            partition = with_pieces(p, work, line, launch.all());
            if (partition.piece == 0) return line;
            continue;
        }
        partition.total = sum_of_lanes(static_cast<int>(mine.line));
        if (partition.total <= p.parts) return partition;
        mine = of_line;
        return line;
    }
}

// By the lane that has the part's first row: what the part begins with. start, slot: what lies
// before the lane's rows, of the launch's line and of all slots.
template <typename Launch>
__device__ PartPlan plan_invariant_part(const AbsorbedParams& p, const Partition& partition,
                                        const Launch& launch, const LaneRows& rows, int start,
                                        int slot, int part) {
    const int begin = part * partition.length;
    const int end = min(begin + partition.length, partition.total);
    PartPlan share;
    share.slot = slot;
    share.row = rows.first;
    RowShape shape = rows.shape;
#pragma unroll 1
    for (; share.row + 1 < rows.end; shape = row_shape(p, ++share.row)) {
        Work work;
        add_row(p, partition, launch, share.row, shape, share.slot, work);
        if (begin < start + work.line) break;
        start += static_cast<int>(work.line);
        share.slot += static_cast<int>(work.slots);
    }
    const RowGroups groups(p, share.row, shape);
    Group group;
    BlockRun run;
    int length = 1;
#pragma unroll 1
    for (;; ++share.group) {
        group = groups.at(share.group);
        length = block_length(p, partition, group);
        run = launch.blocks(group, partition.block_shift, share.slot);
        const int all = (run.end - run.first) * length;
        if (begin < start + all) break;
        start += all;
        share.slot += group_slots(group);
    }
    share.slot -= launch.first_slot();
    share.block = (begin - start) / length;
    start += share.block * length;
    share.block += run.first;
    if (partition.piece > 0) {
        // There are no more pieces than parts, so these products stay below 2^32.
        const auto piece = static_cast<unsigned>(begin - start);
        const auto splits = static_cast<unsigned>(group.splits);
        const auto pieces = static_cast<unsigned>(length);
        share.split = static_cast<int>(piece * splits / pieces);
        share.split_end = static_cast<int>((piece + 1) * splits / pieces);
    } else {
        share.left = end - start;
        share.split = ceil_div(begin - start, split_cost(group));
        share.split_end = min(ceil_div(share.left, split_cost(group)), group.splits);
    }
    share.item =
        block_item(p, share.row, shape, group, share.block, partition.block_shift, share.slot);
    // Keys in one piece are all named by the item: no warp waits for memory twice.
    share.even = group.history < 0 && group.alone < 0;
    share.item.split_tiles = group.tiles;
    share.item.tile_begin = share.split * group.tiles;
    if (share.even) share.item.tile_end = straight_tiles(p, shape, share.item);
    if (share.even && partition.piece > 0) finish_item(p, share);
    return share;
}

// The whole warp.
template <typename Launch>
__device__ void write_invariant_part(const AbsorbedParams& p, const Partition& partition,
                                     const Launch& launch, const LaneRows& rows, const Work& mine,
                                     int part, PartPlan& plan) {
    const int lane = threadIdx.x % 32;
    const int line = static_cast<int>(mine.line), slots = static_cast<int>(mine.slots);
    int through = line, slots_through = slots;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, through, step);
        const int other_slots = __shfl_up_sync(~0u, slots_through, step);
        if (lane >= step) through += other, slots_through += other_slots;
    }
    const long long begin = static_cast<long long>(part) * partition.length;
    const bool owner = begin < partition.total && through - line <= begin && begin < through;
    if (owner)
        plan = plan_invariant_part(p, partition, launch, rows, through - line,
                                   slots_through - slots, part);
    if (!__any_sync(~0u, owner) && lane == 0) plan = PartPlan{};
}

// Counters and marked slots of launches whose rows have `slots` slots.
__device__ void clear_places(const AbsorbedParams& p, int slots, int thread, int threads) {
    for (int slot = thread; slot < min(slots, p.slots); slot += threads)
        p.counters[slot] = Counter{};
    const int marked = min(slots, p.marked_slots);
    for (int i = thread; i < marked * (kStripChunks * kChunkBytes / 16); i += threads)
        p.marked[i] = uint4{};
    for (int i = thread; i < marked * kStripScales; i += threads) p.marked_rows[i] = float2{};
}

__global__ void __launch_bounds__(kPlanThreads)
    invariant_plan_kernel(const __grid_constant__ AbsorbedParams p) {
    const int thread = blockIdx.x * kPlanThreads + threadIdx.x;
    const LaneRows rows(p, thread % 32);
    Work mine;
    const Partition partition = make_invariant_partition(p, OnlyLaunch{}, rows, 0, mine);
    if (thread / 32 < p.parts)
        write_invariant_part(p, partition, OnlyLaunch{}, rows, mine, thread / 32,
                             p.part_plans[thread / 32]);
    clear_places(p, partition.slots, thread, gridDim.x * kPlanThreads);
    if (thread == 0) *p.partition = partition;
}

// --- several launches ---------------------------------------------------------------------------

// The fewest launches that do for what rows have, not for what they may have, and as many slots in
// each: those behind have nothing to do. A power of two: where blocks are one too, 128 of 132
// multiprocessors then have pieces of the same length. What the last has no room for is left out
// (has_room).
__device__ LaunchOfSeveral launch_of(const Launches& launches, int slots, int index) {
    const auto all = static_cast<unsigned>(max(slots, 1));
    const auto most = static_cast<unsigned>(launches.slots);
    unsigned needed = 1;
    while (needed * most < all && needed < static_cast<unsigned>(launches.count)) needed *= 2;
    const int each = static_cast<int>(min((all + needed - 1) / needed, most));
    LaunchOfSeveral launch;
    if (index >= static_cast<int>(needed)) launch.begin = LaunchOfSeveral::kEnd;
    if (index < static_cast<int>(needed)) launch.begin = index * each;
    if (index + 1 < static_cast<int>(needed)) launch.end = launch.begin + each;
    return launch;
}

// Thread blocks of one launch after those of another. They share counters and marked slots, which
// each leaves as it has found them.
__global__ void __launch_bounds__(kPlanThreads)
    several_plans_kernel(const __grid_constant__ AbsorbedParams p, const Launches launches) {
    const int blocks = ceil_div(p.parts, kPlanWarps);
    const int index = static_cast<int>(blockIdx.x) / blocks;
    const int thread = static_cast<int>(blockIdx.x) % blocks * kPlanThreads + threadIdx.x;
    const LaneRows rows(p, thread % 32);
    Partition whole;
    whole.block_shift = p.block_shift;
    const long long slots_of_lane = rows.work(p, whole, OnlyLaunch{}, 0).slots;
    // More slots than 31 bits hold leave no partition, and nothing is computed.
    const int slots = static_cast<int>(min(sum_of_lanes(slots_of_lane), 0x7fffffffll));
    int through = static_cast<int>(slots_of_lane);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, through, step);
        if (thread % 32 >= step) through += other;
    }
    const LaunchOfSeveral launch = launch_of(launches, slots, index);
    Work mine;
    const Partition partition =
        make_invariant_partition(p, launch, rows, through - static_cast<int>(slots_of_lane), mine);
    if (thread / 32 < p.parts)
        write_invariant_part(p, partition, launch, rows, mine, thread / 32,
                             p.part_plans[index * p.parts + thread / 32]);
    if (index == 0) clear_places(p, slots, thread, blocks * kPlanThreads);
}

}  // namespace

cudaError_t launch_plan(const AbsorbedParams& p, const Launches& launches, cudaStream_t stream) {
    const int blocks = (p.parts + kPlanWarps - 1) / kPlanWarps;
    if (launches.count > 1)
        several_plans_kernel<<<blocks * launches.count, kPlanThreads, 0, stream>>>(p, launches);
    else if (p.invariant)
        invariant_plan_kernel<<<blocks, kPlanThreads, 0, stream>>>(p);
    else
        plan_kernel<<<blocks, kPlanThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace espalier::mla::cuda
