// SPDX-License-Identifier: Apache-2.0
// The plan of a step, written by one thread block: 32 warps take the parts in turn.
#include "mla/cuda/invariant_schedule.cuh"

namespace espalier::mla::cuda {
namespace {

constexpr int kPlanThreads = 1024;

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const __grid_constant__ AbsorbedParams p) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    Partition partition = make_partition(p);
    for (int part = warp; part < p.parts; part += kPlanThreads / 32) {
        const PartPlan plan = plan_part(p, partition, part);
        if (lane == 0) p.part_plans[part] = plan;
    }
    if (warp != 0) return;
    list_merges(p, partition);
    if (lane == 0) *p.partition = partition;
}

__global__ void __launch_bounds__(kPlanThreads)
    invariant_plan_kernel(const __grid_constant__ AbsorbedParams p) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const Partition partition = make_invariant_partition(p);
    const Before mine = lane_work(p, partition, lane);
    for (int part = warp; part < p.parts; part += kPlanThreads / 32) {
        const PartPlan plan = plan_invariant_part(p, partition, mine, part);
        if (lane == 0) p.part_plans[part] = plan;
    }
    for (int slot = threadIdx.x; slot < min(partition.slots, p.slots); slot += kPlanThreads)
        p.counters[slot] = Counter{};
    if (threadIdx.x == 0) *p.partition = partition;
}

}  // namespace

cudaError_t launch_plan(const AbsorbedParams& p, cudaStream_t stream) {
    if (p.invariant)
        invariant_plan_kernel<<<1, kPlanThreads, 0, stream>>>(p);
    else
        plan_kernel<<<1, kPlanThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace espalier::mla::cuda
