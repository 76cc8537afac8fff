// SPDX-License-Identifier: Apache-2.0
#include "mla/cuda/order.hpp"

#include <algorithm>

namespace espalier::mla {
namespace {

// Layers may lie side by side in a page.
MemoryRange pages_of(const KvPages& kv, Slots slots) {
    if (kv.data == nullptr || kv.page_count == 0) return {};
    return {kv.data,
            kv.data + (kv.page_count - 1) * kv.page_stride +
                page_stride_bytes(kv.format, kv.page_tokens),
            slots};
}

Ranges arrays_of(const RaggedRows& rows) {
    const std::int64_t tables = rows.table_row != nullptr ? rows.table_rows : rows.rows;
    return {range_of(rows.q_indptr, std::int64_t{rows.rows} + 1),
            range_of(rows.kv_len, rows.rows),
            range_of(rows.block_table, tables * rows.block_stride),
            range_of(rows.table_row, rows.rows),
            range_of(rows.mask, rows.rows),
            range_of(rows.tail_len, rows.rows),
            range_of(rows.words, rows.token_end),
            range_of(rows.custom_mask, rows.custom_mask_len),
            range_of(rows.custom_mask_offset, rows.custom_mask_len > 0 ? rows.rows : 0),
            range_of(rows.global_kv_len, rows.dcp_world > 1 ? rows.rows : 0)};
}

// Memory of all tokens of a call.
MemoryRange tokens_of(const std::byte* data, const RaggedRows& rows, std::int64_t columns,
                      DType dtype) {
    return range_of(data, data == nullptr ? 0
                                          : rows.token_end * columns *
                                                static_cast<std::int64_t>(bytes_of(dtype)));
}

}  // namespace

Capacities capacities_of(const AbsorbedCall& call) {
    return {.heads = call.heads,
            .rows = call.rows.rows,
            .tokens = call.rows.token_end,
            .max_q_len = call.rows.max_q_len,
            .max_kv_len = call.rows.max_kv_len,
            .total_splits = call.rows.total_splits,
            .partial_bytes = call.partial_bytes,
            .invariant = call.invariant,
            .dense = cuda::has_dense_mask(call.rows)};
}

Ranges read_ahead(const Kernels& kernels, const AbsorbedCall& call) {
    Ranges ranges = arrays_of(call.rows);
    ranges.add(pages_of(call.kv, Slots::history));
    const auto bytes = static_cast<std::int64_t>(kernels.plan_bytes(capacities_of(call)));
    ranges.add(range_of(call.plan, call.plan != nullptr ? bytes : 0));
    return ranges;
}

namespace cuda {

// A mask of no bytes hides what a missing one does: all keys of dense rows.
bool has_dense_mask(const RaggedRows& rows) {
    return rows.custom_mask != nullptr && rows.custom_mask_len > 0;
}

LaunchNeeds plan_needs(const AbsorbedCall& call, const MemoryRange& plan) {
    return {.name = "the plan of attention",
            .reads = arrays_of(call.rows),
            .writes = {plan},
            .release = Release::behind_wait};
}

LaunchNeeds dense_index_needs(const AbsorbedCall& call, const MemoryRange& index) {
    return {.name = "the index of dense masks",
            .reads = arrays_of(call.rows),
            .writes = {index},
            .release = Release::behind_wait};
}

// A history without new slots lets the copying warp ask for its first keys ahead: all but
// the rows' own slots, by the plan and the rows' arrays. Queries come, and results go, behind the
// wait. A dense mask is looked through by a launch in front of the call's own.
LaunchNeeds absorbed_needs(const AbsorbedCall& call, const AbsorbedPlaces& places) {
    LaunchNeeds needs{.name = "absorbed attention",
                      .release = Release::behind_wait,
                      .release_ahead = Release::at_once};
    const bool asks = call.history_stands && call.invariant && !has_dense_mask(call.rows);
    Ranges& first = asks ? needs.ahead : needs.reads;
    first = arrays_of(call.rows);
    first.add(places.plan);
    if (asks) first.add(pages_of(call.kv, Slots::history));
    needs.reads.add({tokens_of(call.q, call.rows, call.heads * kKey, call.q_dtype),
                     pages_of(call.kv, Slots::all), places.dense});
    needs.writes = {tokens_of(call.out, call.rows, call.heads * kLatent, call.out_dtype),
                    range_of(call.lse, call.rows.token_end * call.heads), places.counters,
                    places.partial};
    return needs;
}

// All of its launches; each lets the next start behind its wait.
LaunchNeeds decompressed_needs(const DecompressedCall& call, const MemoryRange& scratch) {
    const HeadDims dims = call.head_dims();
    LaunchNeeds needs{.name = "decompressed attention",
                      .reads = arrays_of(call.rows),
                      .release = Release::behind_wait};
    needs.reads.add({tokens_of(call.q, call.rows, call.heads * dims.query(), call.q_dtype),
                     pages_of(call.kv, Slots::all)});
    needs.writes = {tokens_of(call.out, call.rows, call.heads * dims.value, call.out_dtype),
                    range_of(call.lse, call.rows.token_end * call.heads), scratch};
    return needs;
}

LaunchNeeds append_needs(const AppendCall& call) {
    const auto rows = [&](const float* data, std::int64_t stride, std::int64_t columns) {
        return range_of(data, (call.tokens - 1) * stride + columns);
    };
    return {.name = "append",
            .reads = {rows(call.latent, call.latent_stride, kLatent),
                      rows(call.rope, call.rope_stride, kRope), range_of(call.slot, call.tokens)},
            .writes = {pages_of(call.kv, Slots::appended), range_of(call.nonfinite, call.tokens)}};
}

LaunchNeeds append_raw_needs(const AppendCall& call, const RawKeys& keys) {
    const std::int64_t last = call.tokens - 1;
    return {.name = "append_raw",
            .reads = {range_of(keys.kv_a, last * keys.kv_a_stride + kKey),
                      range_of(keys.cos_sin, last * keys.cos_sin_stride + kRope),
                      range_of(call.slot, call.tokens), range_of(keys.beside.x)},
            .writes = {pages_of(call.kv, Slots::appended), range_of(call.nonfinite, call.tokens),
                       range_of(keys.beside.out)},
            .holds_back = keys.holds_back};
}

LaunchNeeds compact_needs(const CompactCall& call) {
    return {.name = "compact",
            .reads = {range_of(call.source, call.moves), range_of(call.destination, call.moves)},
            .writes = {pages_of(call.kv, Slots::all)},
            .release = Release::behind_wait};
}

}  // namespace cuda
}  // namespace espalier::mla
