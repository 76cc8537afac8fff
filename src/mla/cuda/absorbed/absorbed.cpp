// SPDX-License-Identifier: Apache-2.0
// The host's side of absorbed attention: maps for the copy engine, the partition's fixed numbers,
// the workspace, and what to launch. It knows capacities only, never lengths.
#include "mla/cuda/absorbed/absorbed.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "mla/checks.hpp"
#include "mla/cuda/absorbed/absorbed_params.hpp"
#include "mla/cuda/hopper/tensor_map.hpp"
#include "mla/cuda/launch.hpp"
#include "mla/cuda/order.hpp"

namespace espalier::mla::cuda {
namespace {

Expected<void> encode_maps(AbsorbedParams& p) {
    const KvPages& kv = p.kv;
    const std::int64_t tokens = kv.page_tokens;
    const std::int64_t rows = std::min<std::int64_t>(tokens, kTileKeys);
    const std::int64_t pages = std::max<std::int64_t>(kv.page_count, 1);
    const auto fp16 = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const auto bytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const auto wide = CU_TENSOR_MAP_SWIZZLE_128B;
    if (kv.format == KvFormat::bf16 || kv.format == KvFormat::fp16) {
        const std::int64_t blocks = rows == kTileKeys ? 9 : 1;
        ESPALIER_RETURN_IF_ERROR(encode(
            p.key_map, fp16, kv.data,
            std::array<Axis, 4>{
                {{64, 0, 64}, {tokens, 1152, rows}, {9, 128, blocks}, {pages, kv.page_stride, 1}}},
            wide));
        const std::int64_t packed = std::max<std::int64_t>(p.rows.token_end * p.heads, 1);
        return encode(p.query_map, fp16, p.q,
                      std::array<Axis, 3>{{{64, 0, 64}, {packed, 1152, p.query_rows}, {9, 128, 9}}},
                      wide);
    }
    const bool planes = kv.format == KvFormat::fp8_token;
    const std::int64_t row_bytes = planes ? 512 : 576;
    const std::int64_t blocks = rows == kTileKeys ? 4 : 1;
    ESPALIER_RETURN_IF_ERROR(encode(p.key_map, bytes, kv.data,
                                    std::array<Axis, 4>{{{128, 0, 128},
                                                         {tokens, row_bytes, rows},
                                                         {4, 128, blocks},
                                                         {pages, kv.page_stride, 1}}},
                                    wide));
    if (planes)
        return encode(
            p.rope_map, fp16, kv.data + 512 * tokens,
            std::array<Axis, 3>{{{64, 0, 64}, {tokens, 128, rows}, {pages, kv.page_stride, 1}}},
            wide);
    return encode(
        p.rope_map, bytes, kv.data + 512,
        std::array<Axis, 3>{{{64, 0, 64}, {tokens, 576, rows}, {pages, kv.page_stride, 1}}},
        CU_TENSOR_MAP_SWIZZLE_64B);
}

// --- the partition ------------------------------------------------------------------------------
int ceil_divide(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Limits of one call; sizes are asked for before a call is refused, so they stop here.
constexpr std::int64_t kMostSlots = std::int64_t{1} << 26;  // partial results, invariant

// Rows of one launch. Flexible: narrow ones fit one block of packed rows, wide ones take several
// and are a launch of their own, in which thread blocks share parts. Invariant: all of them.
struct Class {
    int least_packed;
    int most_packed;
};

std::vector<Class> classes(const Capacities& capacities, int block_rows) {
    const int most = static_cast<int>(std::clamp<std::int64_t>(
        std::int64_t{capacities.max_q_len} * capacities.heads, 1, kMostPackedRows));
    if (capacities.invariant) return {{1, most}};
    std::vector<Class> all;
    if (capacities.heads <= block_rows) all.push_back({1, std::min(most, block_rows)});
    if (most > block_rows) all.push_back({block_rows + 1, most});
    return all;
}

// Most partial results of block_rows packed rows that a flexible launch may write.
std::int64_t flexible_slots(const Class& rows, int processors, int block_rows) {
    const std::int64_t blocks = ceil_divide(rows.most_packed, block_rows);
    const std::int64_t lanes = std::min<std::int64_t>(blocks, processors);
    return std::max<std::int64_t>(processors / lanes, 1) * blocks * 2;
}
// And of kStripRows with the invariant one, in all launches: a token of a row has ceil(heads / 16)
// of them per split.
std::int64_t invariant_slots(const Capacities& most) {
    if (!most.invariant) return 0;
    std::int64_t splits = most.tokens * most_splits(most.max_kv_len);
    if (most.total_splits > 0) splits = std::min(splits, most.total_splits);
    return splits * ceil_divide(most.heads, kStripRows);
}

std::size_t aligned(std::int64_t bytes) {
    return static_cast<std::size_t>((bytes + 127) / 128 * 128);  // lines of the cache
}

std::size_t flexible_partial_bytes(std::int64_t packed_rows) {
    return aligned(packed_rows * kLatent * 4) + aligned(packed_rows * 4);
}
// The format is the call's.
std::size_t flexible_most_bytes(const Capacities& most, int processors) {
    std::size_t bytes = 0;
    for (const int block_rows : {kBlockRows, kFp8BlockRows})
        for (const Class& rows : classes(most, block_rows))
            bytes = std::max(bytes, flexible_partial_bytes(
                                        flexible_slots(rows, processors, block_rows) * block_rows));
    return bytes;
}
std::size_t invariant_partial_bytes(std::int64_t slots) {
    return aligned(slots * kStripChunks * kChunkBytes) + aligned(slots * kStripScales * 8);
}

// Part of a call's slots for which there is room at once, and how these are dealt to launches.
// Slots of blocks that begin in a launch's share may reach beyond it, by less than a block's.
struct Room {
    Launches launches;
    std::int64_t slots = 0;
};

Room room_of(const Capacities& most, int block_rows) {
    constexpr std::int64_t kPartialBytes = 250'000'000;  // beside the plan, 256 MB in all
    constexpr std::int64_t kSlotBytes = kStripChunks * kChunkBytes + kStripScales * 8;
    const std::int64_t all = std::min(invariant_slots(most), kMostSlots);
    const std::int64_t bytes = most.partial_bytes > 0 ? most.partial_bytes : kPartialBytes;
    const std::int64_t fitting = std::max<std::int64_t>(bytes / kSlotBytes, 1);
    if (all <= fitting) return {.launches = {}, .slots = all};
    const std::int64_t packed = std::int64_t{most.max_q_len} * most.heads;
    const std::int64_t of_block =
        ceil_divide(std::min<std::int64_t>(packed, block_rows), kStripRows) *
        most_splits(most.max_kv_len);
    // Half of the room at least, however long rows are: launches cost time.
    const std::int64_t share = std::max(fitting - of_block, (fitting + 1) / 2);
    // A power of two, as on the device (plan.cu).
    const auto launches = std::bit_ceil(static_cast<std::uint32_t>(ceil_divide(all, share)));
    return {.launches = {.count = static_cast<std::int32_t>(launches),
                         .slots = static_cast<std::int32_t>(share)},
            .slots = std::min(share + of_block, all)};
}

// The plan of one class: partition, parts of each launch, merges or counters.
std::size_t class_plan_bytes(int parts, int rows, const Room& room) {
    return aligned(sizeof(Partition)) +
           aligned(std::int64_t{parts} * room.launches.count *
                   static_cast<std::int64_t>(sizeof(PartPlan))) +
           aligned(rows * static_cast<std::int64_t>(sizeof(MergeRow))) +
           aligned(room.slots * static_cast<std::int64_t>(sizeof(Counter))) +
           invariant_partial_bytes(std::min<std::int64_t>(room.slots, kMarkedSlots));
}

// Everything of the first launch but its workspace; returns where the next plan begins.
std::byte* fit_class(AbsorbedParams& p, const Class& rows, int processors, int launches,
                     std::byte* plan) {
    p.least_packed = rows.least_packed;
    p.most_packed = rows.most_packed;
    p.query_rows = rows.most_packed <= 16 ? 16 : rows.most_packed <= 32 ? 32 : (1 << p.block_shift);
    p.max_blocks = ceil_divide(rows.most_packed, (1 << p.block_shift));
    p.lanes = p.invariant ? 1 : std::min(p.max_blocks, processors);
    p.parts = std::max(processors / p.lanes, 1);
    p.row_cost = 2;
    p.least_tiles = 2;  // one tile per part loses 2 to 3 µs to partial results
    p.partition = reinterpret_cast<Partition*>(plan);
    plan += aligned(sizeof(Partition));
    p.part_plans = reinterpret_cast<PartPlan*>(plan);
    plan += aligned(std::int64_t{p.parts} * launches * static_cast<std::int64_t>(sizeof(PartPlan)));
    p.merge_rows = reinterpret_cast<MergeRow*>(plan);
    plan += aligned(p.rows.rows * static_cast<std::int64_t>(sizeof(MergeRow)));
    p.counters = reinterpret_cast<Counter*>(plan);
    plan += aligned(p.slots * static_cast<std::int64_t>(sizeof(Counter)));
    p.marked_slots = p.query_rows <= kFewRows ? std::min(p.slots, kMarkedSlots) : 0;
    p.marked = reinterpret_cast<uint4*>(plan);
    p.marked_rows =
        reinterpret_cast<float2*>(plan + std::int64_t{p.marked_slots} * kStripChunks * kChunkBytes);
    return plan + invariant_partial_bytes(p.marked_slots);
}

// Returns the memory that it took.
MemoryRange take_partials(Arena& arena, AbsorbedParams& p, const Class& rows, int processors) {
    if (p.invariant) {
        const std::int64_t slots = p.slots;
        p.partial = arena.take<float>(slots * kStripChunks * kChunkBytes / 4);
        p.partial_rows = arena.take<float2>(slots * kStripScales);
        return {reinterpret_cast<std::byte*>(p.partial),
                reinterpret_cast<std::byte*>(p.partial_rows + slots * kStripScales)};
    }
    const std::int64_t packed_rows = flexible_slots(rows, processors, 1 << p.block_shift)
                                     << p.block_shift;
    p.partial = arena.take<float>(packed_rows * kLatent);
    p.partial_lse = arena.take<float>(packed_rows);
    return {reinterpret_cast<std::byte*>(p.partial),
            reinterpret_cast<std::byte*>(p.partial_lse + packed_rows)};
}

cudaError_t launch_main(const AbsorbedParams& p, cudaStream_t stream) {
    switch (p.kv.format) {
        case KvFormat::bf16:
            return p.one_token ? launch_one_token_bf16(p, stream) : launch_bf16(p, stream);
        case KvFormat::fp16:
            return launch_fp16(p, stream);
        case KvFormat::fp8_tensor:
            return launch_fp8_tensor(p, stream);
        case KvFormat::fp8_token:
            return p.one_token ? launch_one_token_fp8_token(p, stream)
                               : launch_fp8_token(p, stream);
        case KvFormat::f32:
            break;
    }
    return cudaErrorNotSupported;  // refused by the checks
}

// A class's part of the plan. The flexible partition counts in it, too, where its plan begins.
AbsorbedPlaces places_of(const AbsorbedParams& p, const MemoryRange& plan, std::int64_t tokens) {
    const auto* counters = reinterpret_cast<const std::byte*>(p.counters);
    return {
        .plan = {plan.begin, counters},
        .counters = {p.invariant ? counters : plan.begin, plan.end},
        .dense = range_of(p.dense_start,
                          p.dense_splits > 0 ? tokens * (std::int64_t{p.dense_splits} + 1) : 0)};
}

// Launches share the workspace: each writes there when the one before has ended.
Expected<void> launch_class(OpContext& context, const AbsorbedCall& call, AbsorbedParams& p,
                            AbsorbedPlaces places, const Class& rows, int processors, int launches,
                            bool last) {
    Arena::Mark mark(context.arena);
    places.partial = take_partials(context.arena, p, rows, processors);
    ESPALIER_RETURN_IF_ERROR(encode_maps(p));
    const auto stream = static_cast<cudaStream_t>(context.stream);
    if (p.dense_splits > 0) {
        context.order.launch(dense_index_needs(call, places.dense));
        ESPALIER_RETURN_IF_ERROR(
            checked(launch_dense_index(p, stream), "the index of dense masks"));
    }
    for (int launch = 0; launch < launches; ++launch, p.part_plans += p.parts) {
        p.padding = last && launch + 1 == launches;
        p.early_keys = context.order.launch(absorbed_needs(call, places)).ahead;
        ESPALIER_RETURN_IF_ERROR(checked(launch_main(p, stream), "absorbed attention"));
    }
    return {};
}

Expected<void> check_capacities(const AbsorbedCall& call) {
    static_assert(kTileKeys == 64 && kFp8BlockRows >= 32 && kBlockRows >= 32);
    ESPALIER_RETURN_IF_ERROR(check_cuda_capacities(call));
    const std::int64_t slots = invariant_slots(capacities_of(call));
    if (slots >= kMostSlots)
        return fail(ErrorKind::exhausted,
                    "{} partial results of {} packed rows: below 2^26 are possible (total_splits "
                    "says how many there will be)",
                    slots, kStripRows);
    return {};
}

AbsorbedParams parameters(const AbsorbedCall& call) {
    AbsorbedParams p;
    p.rows = call.rows;
    p.rows.first_slot = first_local_slot(call.rows);
    if (call.rows.dcp_world > 1) p.rows.dcp_rank += p.rows.first_slot * call.rows.dcp_world;
    const bool dense = has_dense_mask(call.rows);
    if (!dense) p.rows.custom_mask = nullptr;
    p.kv = call.kv;
    p.page_shift = std::countr_zero(static_cast<unsigned>(call.kv.page_tokens));
    p.q = call.q;
    p.q_dtype = call.q_dtype;
    p.out_dtype = call.out_dtype;
    p.heads = call.heads;
    p.heads_inverse = ((std::uint64_t{1} << 32) + static_cast<std::uint64_t>(call.heads) - 1) /
                      static_cast<std::uint64_t>(call.heads);
    constexpr float kLog2E = 1.44269504088896341f;
    p.score_scale = call.scale * kLog2E;
    if (call.q_dtype == DType::e4m3) p.score_scale *= call.q_scale;
    if (call.kv.format == KvFormat::fp8_tensor) {
        p.score_scale *= call.kv.scale;
        p.value_scale = call.kv.scale;
    }
    p.out = call.out;
    p.lse = call.lse;
    p.invariant = call.invariant;
    p.one_token = call.invariant && call.rows.max_q_len == 1 && !dense && call.rows.dcp_world == 1;
    const bool codes =
        call.kv.format == KvFormat::fp8_tensor || call.kv.format == KvFormat::fp8_token;
    p.block_shift = std::countr_zero(static_cast<unsigned>(codes ? kFp8BlockRows : kBlockRows));
    p.slots = static_cast<std::int32_t>(room_of(capacities_of(call), 1 << p.block_shift).slots);
    return p;
}

// Multiprocessors that the call may take.
int processors_of(const AbsorbedCall& call, const DeviceFacts& facts) {
    return call.multiprocessors > 0 ? std::min(facts.multiprocessors, call.multiprocessors)
                                    : facts.multiprocessors;
}

}  // namespace

std::size_t absorbed_plan_bytes(const Capacities& most, const DeviceFacts& facts) {
    const int classes = most.invariant ? 1 : 2;
    return static_cast<std::size_t>(classes) *
           class_plan_bytes(facts.multiprocessors, most.rows, room_of(most, kBlockRows));
}

Expected<void> absorbed_plan(OpContext& context, const AbsorbedCall& call,
                             const DeviceFacts& facts) {
    if (call.rows.token_end == 0) return {};
    ESPALIER_RETURN_IF_ERROR(check_capacities(call));
    const int processors = processors_of(call, facts);
    AbsorbedParams p = parameters(call);
    const Capacities most = capacities_of(call);
    const Launches launches = room_of(most, 1 << p.block_shift).launches;
    std::byte* plan = call.plan;
    for (const Class& rows : classes(most, 1 << p.block_shift)) {
        std::byte* begin = plan;
        plan = fit_class(p, rows, processors, launches.count, plan);
        context.order.launch(plan_needs(call, {begin, plan}));
        ESPALIER_RETURN_IF_ERROR(checked(
            launch_plan(p, launches, static_cast<cudaStream_t>(context.stream)), "the plan"));
    }
    return {};
}

Expected<void> absorbed(OpContext& context, const AbsorbedCall& call, const DeviceFacts& facts) {
    if (call.rows.token_end == 0) return {};
    const Capacities most = capacities_of(call);
    Arena::Mark mark(context.arena);
    if (call.plan == nullptr) {
        AbsorbedCall planned = call;
        planned.plan = context.arena.take<std::byte>(
            static_cast<std::int64_t>(absorbed_plan_bytes(most, facts)));
        ESPALIER_RETURN_IF_ERROR(absorbed_plan(context, planned, facts));
        return absorbed(context, planned, facts);
    }
    ESPALIER_RETURN_IF_ERROR(check_capacities(call));
    const int processors = processors_of(call, facts);
    AbsorbedParams p = parameters(call);
    if (most.invariant && most.dense) {
        p.dense_splits = static_cast<std::int32_t>(most_splits(most.max_kv_len));
        p.dense_start =
            context.arena.take<std::int32_t>(most.tokens * (std::int64_t{p.dense_splits} + 1));
    }
    std::byte* plan = call.plan;
    const int launches = room_of(most, 1 << p.block_shift).launches.count;
    const std::vector<Class> all = classes(most, 1 << p.block_shift);
    for (const Class& rows : all) {
        std::byte* begin = plan;
        plan = fit_class(p, rows, processors, launches, plan);
        ESPALIER_RETURN_IF_ERROR(launch_class(context, call, p,
                                              places_of(p, {begin, plan}, most.tokens), rows,
                                              processors, launches, &rows == &all.back()));
    }
    return {};
}

std::size_t absorbed_scratch(const Capacities& most, const DeviceFacts& facts) {
    std::size_t bytes = most.invariant ? invariant_partial_bytes(room_of(most, kBlockRows).slots)
                                       : flexible_most_bytes(most, facts.multiprocessors);
    bytes += aligned(static_cast<std::int64_t>(absorbed_plan_bytes(most, facts)));
    if (most.invariant && most.dense)
        bytes += aligned(most.tokens * (most_splits(most.max_kv_len) + 1) * 4);
    return bytes;
}

}  // namespace espalier::mla::cuda
