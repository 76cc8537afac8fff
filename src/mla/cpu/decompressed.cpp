// SPDX-License-Identifier: Apache-2.0
// Decompressed attention for prompt segments. A task is one head of one row: for each block of 256
// keys from slot 0, up-project the block once, then fold it into every 16 query tokens that see any
// of it. Blocks, and not chunks of the prompt, cut the keys, so a token's bits are the same in
// whatever chunk it arrives.
#include <algorithm>
#include <cstring>

#include "mla/cpu/entries.hpp"
#include "mla/cpu/key_tiles.hpp"
#include "mla/cpu/up_weights.hpp"

namespace espalier::mla::cpu {
namespace {

constexpr std::int64_t kBlockKeys = 256;
static_assert(kBlockKeys == kMaxTileKeys);

LaneState state_at(float* memory) { return {memory, memory + kLanes, memory + 2 * kLanes}; }

// Byte sizes of a worker's parts, one after another.
struct WorkerLayout {
    std::int64_t latents;        // copied groups of a block, [256][latent + 64]
    std::int64_t scales;         // their scales, [256]
    std::int64_t keys;           // [256][nope + 64]
    std::int64_t values;         // [256][value]
    std::int64_t key_weights;    // of up_key
    std::int64_t value_weights;  // of up_value
    std::int64_t query;          // per 16 tokens
    std::int64_t state;          // per 16 tokens
    std::int64_t total;

    WorkerLayout(const TileKernels& kernels, const KeyDims& key_dims, const HeadDims& dims,
                 std::int64_t units) {
        const std::int64_t element = element_bytes(kernels);
        latents = kBlockKeys * key_dims.key() * element;
        scales = kBlockKeys * 4;
        keys = kBlockKeys * (dims.nope + kRope) * element;
        values = kBlockKeys * dims.value * element;
        key_weights = dims.nope * key_dims.latent * element;
        value_weights = dims.value * key_dims.latent * element;
        query = query_block_bytes(dims.nope + kRope);
        state = kLanes * (dims.value + 2) * 4;
        total = static_cast<std::int64_t>(sizeof(TileScratch)) + latents + scales + keys + values +
                key_weights + value_weights + units * (query + state);
    }
};

struct Worker {
    TileScratch* scratch;
    std::byte* latents;
    float* scales;
    std::byte* keys;
    std::byte* values;
    std::byte* key_weights;
    std::byte* value_weights;
    std::byte* queries;  // [unit][nope + 64][16]
    std::byte* states;   // [unit]

    Worker(const WorkerLayout& layout, std::int64_t units, std::byte* at) {
        const auto take = [&at](std::int64_t bytes) { return std::exchange(at, at + bytes); };
        scratch = reinterpret_cast<TileScratch*>(take(sizeof(TileScratch)));
        latents = take(layout.latents);
        scales = reinterpret_cast<float*>(take(layout.scales));
        keys = take(layout.keys);
        values = take(layout.values);
        key_weights = take(layout.key_weights);
        value_weights = take(layout.value_weights);
        queries = take(units * layout.query);
        states = take(units * layout.state);
    }
};

std::int64_t units_of(std::int64_t tokens) { return (tokens + kLanes - 1) / kLanes; }

class Decompressed {
  public:
    Decompressed(const TileKernels& kernels, const DecompressedCall& call, const RowView& row,
                 std::int64_t head, const WorkerLayout& layout, const Worker& mine)
        : kernels_(kernels),
          call_(call),
          row_(row),
          head_(head),
          layout_(layout),
          mine_(mine),
          value_(call.head_dims().value),
          nope_(call.head_dims().nope),
          query_(nope_ + kRope),
          fold_(kernels.decompressed[index_of(call.head_dims())]),
          up_project_(kernels.up_project[index_of(call.kv.dims)]),
          elements_(elements_of(kernels, call.kv.format, call.kv.scale, call.q_dtype)),
          rope_scaled_(kernels.bf16_elements && call.kv.format == KvFormat::fp8_tensor),
          scores_(plan_scores(static_cast<int>(query_ / 2), static_cast<int>(nope_ / 2),
                              rope_scaled_ ? kRope / 2 : 0, elements_.query_terms)) {}

    void run() const {
        const UpWeights up_key =
            prepare_up_weights(kernels_, call_.up_key, head_, mine_.key_weights);
        const UpWeights up_value =
            prepare_up_weights(kernels_, call_.up_value, head_, mine_.value_weights);
        for (std::int64_t unit = 0; unit < units_of(row_.tokens); ++unit) start_unit(unit);
        // The last token sees the most.
        const std::int64_t reach = row_.prefix(row_.tokens - 1);
        for (std::int64_t first = 0; first < reach; first += kBlockKeys) {
            project_block(first, std::min(kBlockKeys, reach - first), up_key, up_value);
            for (std::int64_t unit = 0; unit < units_of(row_.tokens); ++unit)
                fold_block(unit, first);
        }
        const OutputRows output{call_.out, call_.out_dtype, call_.lse, value_};
        for (std::int64_t i = 0; i < row_.tokens; ++i)
            output.finish(kernels_, state(i / kLanes), static_cast<int>(i % kLanes), packed(i));
    }

  private:
    LaneState state(std::int64_t unit) const {
        return state_at(reinterpret_cast<float*>(mine_.states + unit * layout_.state));
    }
    std::byte* query(std::int64_t unit) const { return mine_.queries + unit * layout_.query; }
    int lanes(std::int64_t unit) const {
        return static_cast<int>(std::min<std::int64_t>(kLanes, row_.tokens - unit * kLanes));
    }
    std::int64_t packed(std::int64_t i) const {
        return (row_.first_token + i) * call_.heads + head_;
    }

    void start_unit(std::int64_t unit) const {
        reset_state(state(unit), value_);
        const auto row_bytes = query_ * static_cast<std::int64_t>(bytes_of(call_.q_dtype));
        pack_queries(kernels_, call_.q + packed(unit * kLanes) * row_bytes, call_.q_dtype, query_,
                     call_.heads * query_, lanes(unit), query(unit));
    }

    // Keys and values of slots [first, first + count) for this head; the rest of the last group of
    // 16 is zeros.
    void project_block(std::int64_t first, std::int64_t count, const UpWeights& up_key,
                       const UpWeights& up_value) const {
        const std::int64_t element = element_bytes(kernels_);
        const KeyDims& dims = call_.kv.dims;
        const KeySource source(kernels_, elements_, call_.kv, row_);
        const bool scaled = elements_.token_scales || rope_scaled_;
        const std::byte* latents[kMaxGroups];
        int groups = 0;
        for (std::int64_t key = 0; key < count; key += kGroupKeys, ++groups)
            latents[groups] =
                source.straight(first + key, std::min<std::int64_t>(kGroupKeys, count - key),
                                mine_.latents + key * dims.key() * element, mine_.scales + key);
        if (rope_scaled_) std::fill_n(mine_.scales, kBlockKeys, elements_.key_scale);
        const float* scales = scaled ? mine_.scales : nullptr;
        up_project_(latents, groups, up_key, scales, mine_.keys, query_);
        up_project_(latents, groups, up_value, scales, mine_.values, value_);
        if (!kernels_.bf16_elements && call_.kv.format != KvFormat::f32) {
            round_to_bf16(reinterpret_cast<float*>(mine_.keys), groups * kGroupKeys * query_);
            round_to_bf16(reinterpret_cast<float*>(mine_.values), groups * kGroupKeys * value_);
        }
        for (std::int64_t key = 0; key < groups * kGroupKeys; ++key)
            std::memcpy(
                mine_.keys + (key * query_ + nope_) * element,
                latents[key / kGroupKeys] + (key % kGroupKeys * dims.key() + dims.latent) * element,
                static_cast<std::size_t>(kRope * element));
    }

    // The rope columns are overwritten afterwards, so rounding them here does no harm.
    static void round_to_bf16(float* values, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) values[i] = to_float(to_bf16(values[i]));
    }

    void fold_block(std::int64_t unit, std::int64_t first) const {
        KeyTile tile{};
        tile.lanes = lanes(unit);
        std::int64_t most = 0;
        for (int lane = 0; lane < tile.lanes; ++lane) {
            most =
                std::clamp<std::int64_t>(row_.prefix(unit * kLanes + lane) - first, 0, kBlockKeys);
            tile.visible[lane] = static_cast<std::int32_t>(most);
        }
        if (most == 0) return;
        tile.groups = static_cast<int>((most + kGroupKeys - 1) / kGroupKeys);
        for (int group = 0; group < tile.groups; ++group) {
            tile.ahead[group] = tile.key[group] =
                mine_.keys + group * kGroupKeys * query_ * element_bytes(kernels_);
            tile.value[group] =
                mine_.values + group * kGroupKeys * value_ * element_bytes(kernels_);
        }
        if (rope_scaled_) tile.score_scale = mine_.scales;
        fold_({query(unit), call_.scale, &scores_}, tile, *mine_.scratch, state(unit));
    }

    const TileKernels& kernels_;
    const DecompressedCall& call_;
    const RowView& row_;
    std::int64_t head_;
    const WorkerLayout& layout_;
    const Worker& mine_;
    std::int64_t value_;
    std::int64_t nope_;
    std::int64_t query_;
    TileFold fold_;
    UpProject up_project_;
    Elements elements_;
    bool rope_scaled_;  // keys are K_nope and V as they are, and codes of rope times one scale
    ScorePlan scores_;
};

}  // namespace

void decompressed(OpContext& context, const TileKernels& kernels, const DecompressedCall& call) {
    const Arena::Mark mark(context.arena);
    const HeadDims dims = call.head_dims();
    const OutputRows output{call.out, call.out_dtype, call.lse, dims.value};
    for (std::int64_t packed = call.rows.q_indptr[call.rows.rows] * std::int64_t{call.heads};
         packed < call.rows.token_end * call.heads; ++packed)
        output.nothing(packed);

    std::int64_t units = 0;
    for (std::int32_t b = 0; b < call.rows.rows; ++b)
        units = std::max(units, units_of(call.rows.q_indptr[b + 1] - call.rows.q_indptr[b]));
    if (units == 0) return;
    const WorkerLayout layout(kernels, call.kv.dims, dims, units);
    std::byte* memory = context.arena.take<std::byte>(layout.total * context.device.workers());
    pool_of(context).run(
        std::int64_t{call.rows.rows} * call.heads, [&](std::int64_t task, int index) {
            const RowView row = view_row(call.rows, static_cast<std::int32_t>(task / call.heads));
            if (row.tokens == 0) return;
            const Worker mine(layout, units, memory + index * layout.total);
            Decompressed(kernels, call, row, task % call.heads, layout, mine).run();
        });
}

std::int64_t decompressed_scratch(const TileKernels& kernels, const Capacities& most) {
    std::int64_t bytes = 0;
    for (const KeyDims& dims : kKeyDims)
        bytes = std::max(bytes,
                         WorkerLayout(kernels, dims, most.head_dims, units_of(most.tokens)).total);
    return bytes * most.workers + 64;
}

}  // namespace espalier::mla::cpu
