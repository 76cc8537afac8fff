// SPDX-License-Identifier: Apache-2.0
// The plan of a step: a warp for each part. All of them find the partition for themselves, which
// costs less than to wait for one that does (with one thread block, whose 32 warps took the parts
// in turn, a plan took twice as long).
#include "mla/cuda/invariant_schedule.cuh"

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

__global__ void __launch_bounds__(kPlanThreads)
    invariant_plan_kernel(const __grid_constant__ AbsorbedParams p) {
    const int thread = blockIdx.x * kPlanThreads + threadIdx.x;
    const int part = thread / 32;
    const Partition partition = make_invariant_partition(p);
    if (part < p.parts) {
        const Before mine = lane_work(p, partition, thread % 32);
        const PartPlan plan = plan_invariant_part(p, partition, mine, part);
        if (thread % 32 == 0) p.part_plans[part] = plan;
    }
    const int threads = gridDim.x * kPlanThreads;
    for (int slot = thread; slot < min(partition.slots, p.slots); slot += threads)
        p.counters[slot] = Counter{};
    const int marked = min(partition.slots, p.marked_slots);
    for (int i = thread; i < marked * (kStripChunks * kChunkBytes / 16); i += threads)
        p.marked[i] = uint4{};
    for (int i = thread; i < marked * kStripScales; i += threads) p.marked_rows[i] = float2{};
    if (thread == 0) *p.partition = partition;
}

}  // namespace

cudaError_t launch_plan(const AbsorbedParams& p, cudaStream_t stream) {
    const int blocks = (p.parts + kPlanWarps - 1) / kPlanWarps;
    if (p.invariant)
        invariant_plan_kernel<<<blocks, kPlanThreads, 0, stream>>>(p);
    else
        plan_kernel<<<blocks, kPlanThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace espalier::mla::cuda
