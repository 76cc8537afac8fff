// SPDX-License-Identifier: Apache-2.0
// The decode call of other engines, in terms of our own: q_len tokens per sequence, and visible =
// causal AND mask. What the absorbed entry wants besides (q_indptr, mask kinds, the combined mask)
// is built in workspace by the device that computes, one (sequence, token) at a time; nothing of
// the device is read on the host. Guarded: a malformed offset or length hides keys.
#pragma once

#include <cstdint>

#include "mla/contract.hpp"

namespace espalier::mla {

// q [batch, q_len, H, 576], out [batch, q_len, H, 512], lse [batch, q_len, H]; kv: tight pages of
// any format but fp8_token.
struct CompatCall {
    std::int32_t batch = 0;
    std::int32_t q_len = 0;
    std::int32_t max_pages = 0;                  // entries per sequence of block_tables
    std::int32_t max_seq_len = 0;                // capacity
    const std::int32_t* block_tables = nullptr;  // [batch, max_pages]
    const std::int32_t* seq_lens = nullptr;      // [batch], the new tokens included
    bool causal = true;
    const std::uint8_t* custom_mask = nullptr;
    const std::int64_t* custom_mask_offset = nullptr;  // [batch]; null: no mask
    std::int64_t custom_mask_len = 0;
    AbsorbedCall attention;  // everything but its rows
};

// Memory where the rows are built; arrays of the computing device.
struct CompatRows {
    std::int32_t* q_indptr;         // [batch + 1]
    std::int32_t* kv_len;           // [batch]
    MaskKind* mask;                 // [batch]
    std::int64_t* combined_offset;  // [batch]; with a causal bound and a mask, as is the next
    std::uint8_t* combined;         // [batch, q_len · max_seq_len]; row b's first q_len · seq_len
};

constexpr bool combines(const CompatCall& call) {
    return call.causal && call.custom_mask_offset != nullptr;
}

// A sequence whose length exceeds the capacities is treated as empty: it sees nothing.
constexpr std::int32_t covered_length(const CompatCall& call, std::int32_t sequence) {
    const std::int32_t length = call.seq_lens[sequence];
    const std::int64_t table_slots =
        static_cast<std::int64_t>(call.max_pages) * call.attention.kv.page_tokens;
    return length < 0 || length > call.max_seq_len || length > table_slots ? 0 : length;
}

// causal AND mask for token i and key c of a sequence with `length` slots.
constexpr bool sees(const CompatCall& call, std::int32_t sequence, std::int32_t length,
                    std::int64_t i, std::int64_t c) {
    if (c >= std::int64_t{length} - (call.q_len - 1) + i) return false;
    const std::int64_t offset = call.custom_mask_offset[sequence];
    const std::int64_t inside = i * length + c;
    return offset >= -inside && offset < call.custom_mask_len - inside &&
           call.custom_mask[offset + inside] != 0;
}

constexpr void build_sequence(const CompatCall& call, const CompatRows& rows,
                              std::int32_t sequence) {
    if (sequence == 0) rows.q_indptr[0] = 0;
    rows.q_indptr[sequence + 1] = (sequence + 1) * call.q_len;
    rows.kv_len[sequence] = covered_length(call, sequence);
    rows.mask[sequence] = call.custom_mask_offset != nullptr ? MaskKind::dense
                          : call.causal                      ? MaskKind::causal
                                                             : MaskKind::full;
    if (combines(call))
        rows.combined_offset[sequence] = std::int64_t{sequence} * call.q_len * call.max_seq_len;
}

// The part of the combined mask that token i owns, keys first, first + step, …
constexpr void build_mask(const CompatCall& call, const CompatRows& rows, std::int32_t sequence,
                          std::int64_t i, std::int64_t first, std::int64_t step) {
    const std::int32_t length = covered_length(call, sequence);
    std::uint8_t* row =
        rows.combined + std::int64_t{sequence} * call.q_len * call.max_seq_len + i * length;
    for (std::int64_t c = first; c < length; c += step)
        row[c] = sees(call, sequence, length, i, c) ? 1 : 0;
}

Expected<void> check_compat(const CompatCall& call);  // host words
std::size_t compat_scratch_bytes(const Kernels& kernels, const CompatCall& call, int workers);
// The call's words are checked, and the arena has compat_scratch_bytes.
Expected<void> decode_compat(const Kernels& kernels, OpContext& context, const CompatCall& call);

namespace cuda {
Expected<void> build_compat_rows(OpContext& context, const CompatCall& call,
                                 const CompatRows& rows);
}

}  // namespace espalier::mla
