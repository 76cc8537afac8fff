// SPDX-License-Identifier: Apache-2.0
// The host's side of decompressed attention: groups of rows and heads that fit the scratch, maps
// for the copy engine, and what to launch. It knows capacities only, never lengths.
#include <algorithm>
#include <array>
#include <limits>

#include "mla/cuda/entries.hpp"
#include "mla/cuda/hopper/tensor_map.hpp"
#include "mla/cuda/launch.hpp"
#include "mla/cuda/order.hpp"
#include "mla/cuda/prompt/decompressed_params.hpp"

namespace espalier::mla::cuda {
namespace {

// Rows go together up to this many places for keys; one row may have more.
constexpr std::int64_t kGroupKeys = 65536;
// Heads go together up to this many bytes of keys and values, but kSectionHeads at least: fewer
// leave multiprocessors idle over a chunk of 2,048 tokens (16 items a head).
constexpr std::int64_t kGroupBytes = std::int64_t{256} << 20;
constexpr std::int32_t kMostGroupRows = 32768;  // of a grid's second axis

std::int64_t key_stride(std::int32_t max_kv_len, const HeadDims& dims) {
    return padded_keys(std::max(max_kv_len, 1), prompt_tile(dims));
}

// Parts into which a call is cut, a function of capacities alone.
struct Groups {
    std::int64_t key_stride = 0;
    std::int32_t rows = 0;   // of a group
    std::int32_t heads = 0;  // of a group
    std::int32_t head_groups = 0;
};

Groups groups_of(const DecompressedCall& call) {
    const std::int32_t rows = call.rows.rows;
    const std::int32_t heads = call.heads;
    Groups groups;
    groups.key_stride = key_stride(call.rows.max_kv_len, call.head_dims());
    groups.rows = static_cast<std::int32_t>(std::clamp<std::int64_t>(
        kGroupKeys / groups.key_stride, 1, std::clamp(rows, 1, kMostGroupRows)));
    const std::int64_t head_bytes =
        groups.rows * groups.key_stride * call.head_dims().outputs() * 2;
    const std::int64_t most =
        std::clamp<std::int64_t>(kGroupBytes / head_bytes, std::min(heads, kSectionHeads), heads);
    groups.head_groups = static_cast<std::int32_t>((heads + most - 1) / most);
    groups.heads = (heads + groups.head_groups - 1) / groups.head_groups;
    return groups;
}

struct Scratch {
    std::byte* latent = nullptr;     // [keys, 512] bf16
    std::byte* rope = nullptr;       // [keys, 64] bf16
    std::byte* projected = nullptr;  // [heads, keys, outputs] bf16: key columns, value columns
    float* scale = nullptr;          // [keys]
    std::int32_t* counters = nullptr;

    static Scratch take(Arena& arena, const Groups& groups, std::int64_t outputs) {
        const std::int64_t keys = groups.rows * groups.key_stride;
        Scratch scratch;
        scratch.latent = arena.take<std::byte>(keys * kLatent * 2);
        scratch.rope = arena.take<std::byte>(keys * kRope * 2);
        scratch.projected = arena.take<std::byte>(groups.heads * keys * outputs * 2);
        scratch.scale = arena.take<float>(keys);
        scratch.counters = arena.take<std::int32_t>(groups.head_groups);
        return scratch;
    }
};

Expected<void> encode_bf16(CUtensorMap& map, const std::byte* data,
                           const std::array<Axis, 3>& axes) {
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, axes, CU_TENSOR_MAP_SWIZZLE_128B);
}

// One call, group by group.
class PromptCall {
  public:
    PromptCall(const DecompressedCall& call, const Groups& groups, const Scratch& scratch,
               int multiprocessors, cudaStream_t stream)
        : call_(call),
          dims_(call.head_dims()),
          groups_(groups),
          scratch_(scratch),
          multiprocessors_(multiprocessors),
          stream_(stream) {}

    Expected<void> run() {
        ESPALIER_RETURN_IF_ERROR(encode_maps());
        std::int32_t first = 0;
        do {
            const RowGroup rows{.rows = call_.rows,
                                .first = first,
                                .count = std::min(groups_.rows, call_.rows.rows - first),
                                .key_stride = static_cast<std::int32_t>(groups_.key_stride),
                                .tile = prompt_tile(dims_)};
            ESPALIER_RETURN_IF_ERROR(gather(rows));
            if (rows.count == 0) break;
            for (std::int32_t group = 0; group < groups_.head_groups; ++group)
                ESPALIER_RETURN_IF_ERROR(attend(rows, group));
            first += rows.count;
        } while (first < call_.rows.rows);
        return {};
    }

  private:
    Expected<void> encode_maps() {
        const std::int64_t keys = groups_.rows * groups_.key_stride;
        const std::int64_t outputs = dims_.outputs();
        const std::int64_t key_bytes = outputs * 2;
        const int tile = prompt_tile(dims_);
        const std::int64_t tokens = call_.rows.token_end;
        ESPALIER_RETURN_IF_ERROR(
            encode_bf16(project_.latent_map, scratch_.latent,
                        {{{kLatent, 0, 64}, {keys, kLatent * 2, kProjectKeys}, {1, 16, 1}}}));
        ESPALIER_RETURN_IF_ERROR(encode_bf16(
            project_.weight_map, call_.up_key.data,
            {{{kLatent, 0, 64}, {call_.heads * outputs, kLatent * 2, 256}, {1, 16, 1}}}));
        ESPALIER_RETURN_IF_ERROR(encode_bf16(
            project_.projected_map, scratch_.projected,
            {{{outputs, 0, 64}, {keys, key_bytes, 64}, {groups_.heads, keys * key_bytes, 1}}}));
        ESPALIER_RETURN_IF_ERROR(encode_bf16(
            attend_.key_map, scratch_.projected,
            {{{outputs, 0, 64}, {keys, key_bytes, tile}, {groups_.heads, keys * key_bytes, 1}}}));
        ESPALIER_RETURN_IF_ERROR(
            encode_bf16(attend_.rope_map, scratch_.rope,
                        {{{kRope, 0, 64}, {keys, kRope * 2, tile}, {1, 16, 1}}}));
        return encode_bf16(attend_.query_map, call_.q,
                           {{{dims_.query(), 0, 64},
                             {call_.heads, dims_.query() * 2, 1},
                             {tokens, call_.heads * dims_.query() * 2, kPromptQueries}}});
    }

    Expected<void> gather(const RowGroup& rows) {
        GatherParams p;
        p.group = rows;
        p.kv = call_.kv;
        p.latent = scratch_.latent;
        p.rope = scratch_.rope;
        p.scale = scratch_.scale;
        p.counters = scratch_.counters;
        p.counter_count = groups_.head_groups;
        p.clear_padding = rows.first == 0;
        p.out = call_.out;
        p.out_token_bytes =
            call_.heads * dims_.value * static_cast<std::int64_t>(bytes_of(call_.out_dtype));
        p.lse = call_.lse;
        p.heads = call_.heads;
        return checked(launch_gather(p, stream_), "the keys of decompressed attention");
    }

    Expected<void> attend(const RowGroup& rows, std::int32_t group) {
        const std::int32_t first_head = group * groups_.heads;
        const std::int32_t heads = std::min(groups_.heads, call_.heads - first_head);
        const auto head_blocks = static_cast<std::int32_t>(dims_.outputs() / 64);
        project_.group = rows;
        project_.scale = call_.kv.format == KvFormat::fp8_token ? scratch_.scale : nullptr;
        project_.unit = call_.kv.format == KvFormat::fp8_tensor ? call_.kv.scale : 1.0f;
        project_.first_block = first_head * head_blocks;
        project_.block_count = heads * head_blocks;
        project_.head_blocks = head_blocks;
        ESPALIER_RETURN_IF_ERROR(
            checked(launch_projection(project_, multiprocessors_, stream_), "the up-projection"));
        const std::int64_t tiles = round_up(call_.rows.max_q_len, kPromptQueries) / kPromptQueries;
        const std::int64_t items = tiles * rows.count * heads;
        if (items > std::numeric_limits<std::int32_t>::max() / 2)
            return fail(ErrorKind::unsupported,
                        "decompressed attention of {} rows with max_q_len {} and {} heads",
                        rows.count, call_.rows.max_q_len, heads);
        constexpr float kLog2E = 1.44269504088896341f;
        attend_.group = rows;
        attend_.out = call_.out;
        attend_.lse = call_.lse;
        attend_.counter = scratch_.counters + group;
        attend_.score_scale = call_.scale * kLog2E;
        attend_.rope_scale = call_.kv.scale;
        attend_.scaled_rope = call_.kv.format == KvFormat::fp8_tensor;
        attend_.heads = call_.heads;
        attend_.first_head = first_head;
        attend_.head_count = heads;
        attend_.query_tiles = static_cast<std::int32_t>(tiles);
        attend_.items = static_cast<std::int32_t>(items);
        attend_.out_dtype = call_.out_dtype;
        return checked(launch_prompt_attention(attend_, dims_, multiprocessors_, stream_),
                       "decompressed attention");
    }

    const DecompressedCall& call_;
    HeadDims dims_;
    const Groups& groups_;
    const Scratch& scratch_;
    int multiprocessors_;
    cudaStream_t stream_;
    ProjectParams project_{};
    AttendParams attend_{};
};

}  // namespace

Expected<void> decompressed(OpContext& context, const DecompressedCall& call,
                            const DeviceFacts& facts) {
    if (call.rows.token_end == 0) return {};
    if (call.q_dtype == DType::f16) return decompressed_fp16(context, call);
    if (call.rows.max_kv_len > 1 << 28)
        return fail(ErrorKind::unsupported,
                    "decompressed attention over {} slots: 2^28 are the most",
                    call.rows.max_kv_len);
    if (!(call.scale > 0.0f))
        return fail(ErrorKind::unsupported, "decompressed attention with scale {}", call.scale);
    const Groups groups = groups_of(call);
    Arena::Mark mark(context.arena);
    const Scratch scratch = Scratch::take(context.arena, groups, call.head_dims().outputs());
    context.order.launch(decompressed_needs(
        call,
        {scratch.latent, reinterpret_cast<std::byte*>(scratch.counters + groups.head_groups)}));
    return PromptCall(call, groups, scratch, facts.multiprocessors, stream_of(context)).run();
}

// Smaller capacities make other groups, so this is a bound: of keys what one group or one row has,
// of keys and values what the rule for heads allows.
std::size_t decompressed_scratch(const Capacities& most) {
    const std::int64_t stride = key_stride(most.max_kv_len, most.head_dims);
    const std::int64_t keys =
        std::min(std::max(most.rows, 1) * stride, std::max(kGroupKeys, stride));
    const std::int64_t head_bytes = keys * most.head_dims.outputs() * 2;
    const std::int64_t projected =
        std::min(most.heads * head_bytes,
                 std::max(kGroupBytes, std::min(most.heads, kSectionHeads) * head_bytes));
    const std::int64_t bytes[] = {keys * kLatent * 2, keys * kRope * 2, projected, keys * 4,
                                  std::int64_t{most.heads} * 4};
    std::int64_t total = 0;
    for (const std::int64_t part : bytes) total += round_up(part, 64);
    return static_cast<std::size_t>(total);
}

}  // namespace espalier::mla::cuda
