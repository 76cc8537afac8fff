// SPDX-License-Identifier: Apache-2.0
// The contract's plain data: cache formats, pages, masks, ragged rows. Device code includes this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/head_dims.hpp"
#include "base/limits.hpp"
#include "base/numeric.hpp"

namespace espalier::mla {

// The usual widths: all that CUDA's kernels are compiled for and the C API takes. A call has its
// own (KvPages::dims); the CPU takes those of kKeyDims, the oracle any.
inline constexpr std::int64_t kLatent = KeyDims{}.latent;  // 512
inline constexpr std::int64_t kRope = KeyDims{}.rope;      // 64
inline constexpr std::int64_t kKey = KeyDims{}.key();      // 576 columns of a cached slot
// One head, decompressed, as DeepSeek and Kimi have it: likewise all that the C API takes.
inline constexpr std::int64_t kNope = kHeadDims[0].nope;    // 128 key columns without rope
inline constexpr std::int64_t kValue = kHeadDims[0].value;  // 128
inline constexpr std::int64_t kQuery = kNope + kRope;       // 192
inline constexpr HeadDims kWideHead = kHeadDims[1];         // GLM-4.7-Flash's
inline constexpr std::int64_t kMaxTail = kMaxNodes;         // slots that a mask word speaks of

enum class KvFormat : std::uint8_t { f32, bf16, fp16, fp8_tensor, fp8_token };
std::string_view name_of(KvFormat format);

// A part of every slot of a page: slot s has `bytes` from byte first + s · bytes of the page on.
struct SlotPart {
    std::int64_t first = 0;
    std::int64_t bytes = 0;
};
inline constexpr int kMostSlotParts = 3;
struct SlotParts {
    SlotPart part[kMostSlotParts];
};
// Layout of slots in a page: of most formats in one part, latent then rope; of fp8_token in three
// (latent e4m3, rope bf16, the token's scale f32).
constexpr SlotParts slot_parts(KvFormat format, const KeyDims& dims, std::int64_t page_tokens) {
    switch (format) {
        case KvFormat::f32:
            return {{{0, dims.key() * 4}}};
        case KvFormat::bf16:
        case KvFormat::fp16:
            return {{{0, dims.key() * 2}}};
        case KvFormat::fp8_tensor:
            return {{{0, dims.key()}}};
        case KvFormat::fp8_token:
            break;
    }
    const std::int64_t latent = dims.latent, rope = dims.rope * 2;
    return {{{0, latent}, {page_tokens * latent, rope}, {page_tokens * (latent + rope), 4}}};
}

// Bytes from one page to the next: those of its slots; of fp8_token up to a multiple of 128.
std::int64_t page_stride_bytes(KvFormat format, std::int64_t page_tokens, const KeyDims& dims = {});

// The pages of one plane of one layer. Slot s of the pool lies in page s / page_tokens.
struct KvPages {
    std::byte* data = nullptr;
    KvFormat format = KvFormat::bf16;
    std::int32_t page_tokens = 64;  // 16, 32, 64 or 128
    std::int64_t page_stride = 0;   // bytes
    std::int64_t page_count = 0;
    float scale = 1.0f;  // fp8_tensor
    KeyDims dims = {};   // columns of a slot
};

enum class MaskKind : std::uint8_t { full, causal, tree, dense };

// The ragged rows of one call. All arrays of a call lie in the memory of the device that computes;
// host integers are capacities, so that a captured graph may be replayed with other lengths. Row b
// owns query tokens q_indptr[b] … q_indptr[b+1]-1 of the token arrays; tokens from q_indptr[rows]
// to token_end are padding: their out is 0 and their lse -inf. Tokens before q_indptr[0] belong to
// another call and are left alone. kv_len includes the row's own tokens.
struct RaggedRows {
    std::int32_t rows = 0;                   // B
    std::int64_t token_end = 0;              // total_q_cap
    const std::int32_t* q_indptr = nullptr;  // [B+1]
    const std::int32_t* kv_len = nullptr;    // [B]
    // [B, block_stride]; with table_row, [table_rows, block_stride]: row b's is the
    // table_row[b]-th, so that tables can stay where their requests are while rows come and go.
    const std::int32_t* block_table = nullptr;
    std::int64_t block_stride = 0;
    const std::int32_t* table_row = nullptr;  // [B]; null: row b has table b
    std::int32_t table_rows = 0;              // with table_row
    const MaskKind* mask = nullptr;           // [B]
    const std::int32_t* tail_len = nullptr;   // [B]; null: q_len
    const std::uint64_t* words = nullptr;     // [token_end], tree rows
    const std::uint8_t* custom_mask =
        nullptr;  // dense rows: [q_len × kv_len] at custom_mask_offset[b]
    const std::int64_t* custom_mask_offset = nullptr;
    std::int64_t custom_mask_len = 0;
    std::int32_t max_q_len = 0;  // capacities for workspace
    std::int32_t max_kv_len = 0;
    // The sum of row_splits() over all rows at most, which bounds the workspace of invariant
    // attention; 0: rows of max_q_len tokens over max_kv_len keys, all of them.
    std::int64_t total_splits = 0;
    std::int32_t dcp_world = 1;  // context parallel: local slot c is global slot c·W + r
    std::int32_t dcp_rank = 0;
    const std::int32_t* global_kv_len = nullptr;  // [B]; null unless dcp_world > 1
    // 0 or 1: (global) slots below it do not exist for this call, and keys are counted from it. The
    // KV of a draft layer begins at slot 1: it is made from a token and the state before it.
    std::int32_t first_slot = 0;
};

// Keys that tokens attend to in place of those their mask leaves: token t sees the first count[t]
// slots of its list, in list order; count −1: its mask decides. An entry that is no slot of its row
// from first_slot on is nothing.
struct KeyLists {
    std::int32_t* slots = nullptr;  // [token_end, stride]
    std::int32_t* count = nullptr;  // [token_end]; null: there are no lists
    std::int64_t stride = 0;
};

// Number of this rank's slots below first_slot.
constexpr std::int32_t first_local_slot(const RaggedRows& rows) {
    return rows.dcp_rank < rows.first_slot ? 1 : 0;
}

// Which of the block tables is row b's; -1: table_row[b] names none.
constexpr std::int64_t table_of(const RaggedRows& rows, std::int64_t b) {
    if (rows.table_row == nullptr) return b;
    const std::int32_t table = rows.table_row[b];
    return table < 0 || table >= rows.table_rows ? -1 : table;
}

// --- splits -------------------------------------------------------------------------------------
// Invariant attention cuts the keys that a token sees, in order, into splits whose length depends
// on nothing but how many they are: short ones for few keys, so that one row can keep many
// multiprocessors busy; long ones for many, since every split leaves a partial result.
struct SplitRule {
    std::int64_t most_keys;  // for tokens that see at most this many keys …
    std::int32_t length;     // … the keys of a split: whole tiles of 64
};
inline constexpr int kSplitRules = 3;
constexpr SplitRule split_rule(int index) {
    if (index == 0) return {1024, 128};
    if (index == 1) return {2048, 192};
    return {std::int64_t{1} << 31, 512};
}
// The rule for a token that sees `visible` keys.
constexpr int split_rule_of(std::int64_t visible) {
    int index = 0;
    while (index + 1 < kSplitRules && visible > split_rule(index).most_keys) ++index;
    return index;
}
constexpr std::int32_t split_keys(std::int64_t visible) {
    return split_rule(split_rule_of(visible)).length;
}

// The most splits of a token that sees up to `keys` keys.
constexpr std::int64_t most_splits(std::int64_t keys) {
    std::int64_t most = 0;
    for (int index = 0; index <= split_rule_of(keys); ++index) {
        const SplitRule rule = split_rule(index);
        const std::int64_t reach = keys < rule.most_keys ? keys : rule.most_keys;
        const std::int64_t splits = (reach + rule.length - 1) / rule.length;
        most = splits > most ? splits : most;
    }
    return most;
}

// A row's share of RaggedRows::total_splits, whatever its mask.
constexpr std::int64_t row_splits(std::int64_t q_len, std::int64_t kv_len) {
    return q_len * most_splits(kv_len);
}

}  // namespace espalier::mla
