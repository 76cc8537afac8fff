// SPDX-License-Identifier: Apache-2.0
#include "mla/compat.hpp"

#include <limits>

#include "base/cpu_device.hpp"

namespace espalier::mla {
namespace {

std::int64_t token_count(const CompatCall& call) { return std::int64_t{call.batch} * call.q_len; }

std::int64_t combined_bytes(const CompatCall& call) {
    return combines(call) ? token_count(call) * call.max_seq_len : 0;
}

CompatRows take_rows(Arena& arena, const CompatCall& call) {
    CompatRows rows{};
    rows.q_indptr = arena.take<std::int32_t>(call.batch + 1);
    rows.kv_len = arena.take<std::int32_t>(call.batch);
    rows.mask = arena.take<MaskKind>(call.batch);
    rows.combined_offset = arena.take<std::int64_t>(combines(call) ? call.batch : 0);
    rows.combined = arena.take<std::uint8_t>(combined_bytes(call));
    return rows;
}

// The CPU looks into its arrays, and says what it finds.
Expected<void> check_lengths(const CompatCall& call) {
    for (std::int32_t sequence = 0; sequence < call.batch; ++sequence)
        if (covered_length(call, sequence) != call.seq_lens[sequence])
            return fail(ErrorKind::invalid,
                        "sequence {}: {} slots, between 0 and max_seq_len {} in {} pages of {} are "
                        "possible",
                        sequence, call.seq_lens[sequence], call.max_seq_len, call.max_pages,
                        call.attention.kv.page_tokens);
    return {};
}

Expected<void> build_on_cpu(OpContext& context, const CompatCall& call, const CompatRows& rows) {
    ESPALIER_RETURN_IF_ERROR(check_lengths(call));
    for (std::int32_t sequence = 0; sequence < call.batch; ++sequence)
        build_sequence(call, rows, sequence);
    if (!combines(call)) return {};
    pool_of(context).run(token_count(call), [&](std::int64_t token, int) {
        build_mask(call, rows, static_cast<std::int32_t>(token / call.q_len), token % call.q_len, 0,
                   1);
    });
    return {};
}

Capacities capacities_of(const CompatCall& call, int workers) {
    return {.heads = call.attention.heads,
            .rows = call.batch,
            .tokens = token_count(call),
            .max_q_len = call.q_len,
            .max_kv_len = call.max_seq_len,
            .workers = workers,
            .invariant = call.attention.invariant,
            .dense = call.custom_mask_offset != nullptr,
            .decompressed = false};
}

}  // namespace

Expected<void> check_compat(const CompatCall& call) {
    if (call.batch < 0 || call.q_len < 0 || call.max_pages < 0 || call.max_seq_len < 0)
        return fail(ErrorKind::invalid, "batch {}, q_len {}, max_pages {}, max_seq_len {}",
                    call.batch, call.q_len, call.max_pages, call.max_seq_len);
    if (token_count(call) > std::numeric_limits<std::int32_t>::max())
        return fail(ErrorKind::unsupported,
                    "{} sequences of {} tokens: 2^31 - 1 tokens are the most", call.batch,
                    call.q_len);
    if (call.attention.kv.format == KvFormat::fp8_token)
        return fail(ErrorKind::unsupported,
                    "fp8_token pages are no [page, slot, 576] cache: use the absorbed entry");
    if (call.batch > 0 && (call.seq_lens == nullptr || call.block_tables == nullptr))
        return fail(ErrorKind::invalid, "{} sequences without {}", call.batch,
                    call.seq_lens == nullptr ? "seq_lens" : "block_tables");
    if (call.custom_mask_len < 0 || (call.custom_mask == nullptr && call.custom_mask_len > 0) ||
        (call.custom_mask != nullptr && call.custom_mask_offset == nullptr))
        return fail(ErrorKind::invalid, "a custom mask of {} bytes without {}",
                    call.custom_mask_len, call.custom_mask == nullptr ? "bytes" : "cmask_off");
    return {};
}

std::size_t compat_scratch_bytes(const Kernels& kernels, const CompatCall& call, int workers) {
    const auto rounded = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };  // as Arena
    const std::int64_t batch = call.batch;
    const std::int64_t rows = rounded((batch + 1) * 4) + rounded(batch * 4) + rounded(batch) +
                              rounded(combines(call) ? batch * 8 : 0) +
                              rounded(combined_bytes(call));
    const std::size_t attention = kernels.scratch_bytes(capacities_of(call, workers));
    return static_cast<std::size_t>(rows + rounded(static_cast<std::int64_t>(attention)));
}

Expected<void> decode_compat(const Kernels& kernels, OpContext& context, const CompatCall& call) {
    if (token_count(call) == 0) return {};
    const Arena::Mark mark(context.arena);
    const CompatRows built = take_rows(context.arena, call);
    ESPALIER_RETURN_IF_ERROR(context.device.kind() == DeviceKind::cuda
                                 ? cuda::build_compat_rows(context, call, built)
                                 : build_on_cpu(context, call, built));
    AbsorbedCall absorbed = call.attention;
    absorbed.rows = {};
    absorbed.rows.rows = call.batch;
    absorbed.rows.token_end = token_count(call);
    absorbed.rows.q_indptr = built.q_indptr;
    absorbed.rows.kv_len = built.kv_len;
    absorbed.rows.block_table = call.block_tables;
    absorbed.rows.block_stride = call.max_pages;
    absorbed.rows.mask = built.mask;
    absorbed.rows.max_q_len = call.q_len;
    absorbed.rows.max_kv_len = call.max_seq_len;
    if (combines(call)) {
        absorbed.rows.custom_mask = built.combined;
        absorbed.rows.custom_mask_offset = built.combined_offset;
        absorbed.rows.custom_mask_len = combined_bytes(call);
    } else {
        absorbed.rows.custom_mask = call.custom_mask;
        absorbed.rows.custom_mask_offset = call.custom_mask_offset;
        absorbed.rows.custom_mask_len = call.custom_mask_len;
    }
    return kernels.absorbed(context, absorbed);
}

}  // namespace espalier::mla
