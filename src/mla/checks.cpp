// SPDX-License-Identifier: Apache-2.0
#include "mla/checks.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "mla/storage.hpp"

namespace espalier::mla {
namespace {

constexpr std::int32_t kMaxHeads = 128;
constexpr std::int64_t kMaxColumns = std::int64_t{1} << 16;

Expected<void> check_pages(const KvPages& kv) {
    if (kv.page_tokens != 16 && kv.page_tokens != 32 && kv.page_tokens != 64 &&
        kv.page_tokens != 128)
        return fail(ErrorKind::unsupported, "pages of {} tokens: 16, 32, 64 or 128 are possible",
                    kv.page_tokens);
    if (kv.dims.latent < 1 || kv.dims.rope < 0 || kv.dims.latent > kMaxColumns ||
        kv.dims.rope > kMaxColumns)
        return fail(ErrorKind::invalid,
                    "slots of {} + {} columns: 1 to {} and 0 to {} are possible", kv.dims.latent,
                    kv.dims.rope, kMaxColumns, kMaxColumns);
    const std::int64_t least = page_stride_bytes(kv.format, kv.page_tokens, kv.dims);
    if (kv.page_stride < least)
        return fail(ErrorKind::invalid,
                    "{} pages of {} tokens need {} bytes, the page stride is {}",
                    name_of(kv.format), kv.page_tokens, least, kv.page_stride);
    if (kv.page_count < 0 || (kv.page_count > 0 && kv.data == nullptr))
        return fail(ErrorKind::invalid, "{} pages at {}", kv.page_count,
                    kv.data == nullptr ? "no address" : "an address");
    return {};
}

Expected<void> check_row_mask(const RaggedRows& rows, std::int32_t b, std::int64_t q_len) {
    switch (rows.mask[b]) {
        case MaskKind::full:
        case MaskKind::causal:
            return {};
        case MaskKind::tree: {
            if (rows.words == nullptr)
                return fail(ErrorKind::invalid, "row {} is a tree without words", b);
            const std::int64_t tail = rows.tail_len == nullptr ? q_len : rows.tail_len[b];
            if (tail < q_len || tail > kMaxTail)
                return fail(ErrorKind::invalid,
                            "row {}: a tree tail of {} slots, between q_len {} and {} is possible",
                            b, tail, q_len, kMaxTail);
            return {};
        }
        case MaskKind::dense:
            if (rows.custom_mask_offset == nullptr)
                return fail(ErrorKind::invalid, "row {} has a dense mask, but the call gives none",
                            b);
            return {};
    }
    return fail(ErrorKind::unsupported, "row {}: mask kind {}", b, static_cast<int>(rows.mask[b]));
}

// Only the entries that kv_len reaches are read.
Expected<void> check_row_pages(const RaggedRows& rows, std::int32_t b, const KvPages& kv) {
    const std::int64_t used =
        (static_cast<std::int64_t>(rows.kv_len[b]) + kv.page_tokens - 1) / kv.page_tokens;
    if (used > rows.block_stride)
        return fail(ErrorKind::invalid,
                    "row {}: {} cached slots need {} pages, its block table has {}", b,
                    rows.kv_len[b], used, rows.block_stride);
    const std::int64_t table = table_of(rows, b);
    if (table < 0)
        return fail(ErrorKind::invalid, "row {} has block table {} of {}", b, rows.table_row[b],
                    rows.table_rows);
    for (std::int64_t index = 0; index < used; ++index) {
        const std::int32_t page = rows.block_table[table * rows.block_stride + index];
        if (page < 0 || page >= kv.page_count)
            return fail(ErrorKind::invalid, "row {}: entry {} of the block table is page {} of {}",
                        b, index, page, kv.page_count);
    }
    return {};
}

Expected<void> check_row(const RaggedRows& rows, std::int32_t b, const KvPages& kv) {
    const std::int64_t q_len = static_cast<std::int64_t>(rows.q_indptr[b + 1]) - rows.q_indptr[b];
    if (q_len < 0)
        return fail(ErrorKind::invalid, "row {}: q_indptr falls from {} to {}", b, rows.q_indptr[b],
                    rows.q_indptr[b + 1]);
    if (q_len == 0) return {};
    if (q_len > rows.max_q_len)
        return fail(ErrorKind::invalid, "row {}: {} query tokens, more than max_q_len {}", b, q_len,
                    rows.max_q_len);
    if (rows.kv_len[b] < 0 || rows.kv_len[b] > rows.max_kv_len)
        return fail(ErrorKind::invalid,
                    "row {}: kv_len {}, between 0 and max_kv_len {} is possible", b, rows.kv_len[b],
                    rows.max_kv_len);
    ESPALIER_RETURN_IF_ERROR(check_row_mask(rows, b, q_len));
    return check_row_pages(rows, b, kv);
}

// Host integers and addresses only; what the arrays hold is not looked at.
Expected<void> check_row_arguments(const RaggedRows& rows) {
    if (rows.rows < 0 || rows.q_indptr == nullptr)
        return fail(ErrorKind::invalid, "{} rows{}", rows.rows,
                    rows.q_indptr == nullptr ? " without q_indptr" : "");
    if (rows.rows > 0 &&
        (rows.kv_len == nullptr || rows.block_table == nullptr || rows.mask == nullptr))
        return fail(ErrorKind::invalid, "{} rows need kv_len, block_table and mask", rows.rows);
    if (rows.token_end < 0 || rows.max_q_len < 0 || rows.max_kv_len < 0 || rows.block_stride < 0)
        return fail(ErrorKind::invalid,
                    "capacities below 0: token_end {}, max_q_len {}, max_kv_len {}, block_stride "
                    "{}",
                    rows.token_end, rows.max_q_len, rows.max_kv_len, rows.block_stride);
    if (rows.table_rows < 0 || rows.total_splits < 0)
        return fail(ErrorKind::invalid, "capacities below 0: table_rows {}, total_splits {}",
                    rows.table_rows, rows.total_splits);
    if (rows.custom_mask_len < 0 || (rows.custom_mask == nullptr && rows.custom_mask_len > 0))
        return fail(ErrorKind::invalid, "a dense mask of {} bytes at {}", rows.custom_mask_len,
                    rows.custom_mask == nullptr ? "no address" : "an address");
    if (rows.custom_mask != nullptr && rows.custom_mask_offset == nullptr)
        return fail(ErrorKind::invalid, "a dense mask of {} bytes without custom_mask_offset",
                    rows.custom_mask_len);
    if (rows.dcp_world < 1 || rows.dcp_rank < 0 || rows.dcp_rank >= rows.dcp_world)
        return fail(ErrorKind::invalid, "context-parallel rank {} of {}", rows.dcp_rank,
                    rows.dcp_world);
    if (rows.first_slot < 0 || rows.first_slot > 1)
        return fail(ErrorKind::unsupported, "first_slot {}: 0 or 1 is possible", rows.first_slot);
    if (rows.dcp_world > 1 && rows.global_kv_len == nullptr)
        return fail(ErrorKind::invalid, "context parallel over {} ranks needs global_kv_len",
                    rows.dcp_world);
    return {};
}

Expected<void> check_row_arrays(const RaggedRows& rows, const KvPages& kv) {
    if (rows.q_indptr[0] < 0 || rows.q_indptr[rows.rows] > rows.token_end)
        return fail(ErrorKind::invalid, "query tokens {} to {} lie outside 0 to {}",
                    rows.q_indptr[0], rows.q_indptr[rows.rows], rows.token_end);
    std::int64_t splits = 0;
    for (std::int32_t b = 0; b < rows.rows; ++b) {
        ESPALIER_RETURN_IF_ERROR(check_row(rows, b, kv));
        const std::int64_t q_len = rows.q_indptr[b + 1] - rows.q_indptr[b];
        if (q_len > 0) splits += row_splits(q_len, rows.kv_len[b]);
    }
    if (rows.total_splits > 0 && splits > rows.total_splits)
        return fail(ErrorKind::invalid, "the rows have {} splits, more than total_splits {}",
                    splits, rows.total_splits);
    return {};
}

Expected<void> check_heads_and_output(std::int32_t heads, DType out_dtype, const std::byte* q,
                                      const std::byte* out, std::int64_t token_end) {
    if (heads < 1 || heads > kMaxHeads)
        return fail(ErrorKind::unsupported, "{} heads: 1 to {} are possible", heads, kMaxHeads);
    if (out_dtype == DType::e4m3) return fail(ErrorKind::unsupported, "attention output in e4m3");
    if (token_end > 0 && (q == nullptr || out == nullptr))
        return fail(ErrorKind::invalid, "{} query tokens without {}", token_end,
                    q == nullptr ? "q" : "out");
    return {};
}

// The strides and what goes with lists; entries may be anything.
Expected<void> check_list_arguments(const KeyLists& lists, const RaggedRows& rows) {
    if (lists.count == nullptr) return {};
    if (lists.stride < 0 || (lists.slots == nullptr && lists.stride > 0))
        return fail(ErrorKind::invalid, "lists of {} keys at {}", lists.stride,
                    lists.slots == nullptr ? "no address" : "an address");
    if (rows.dcp_world > 1)
        return fail(ErrorKind::unsupported, "lists of keys over {} context-parallel ranks",
                    rows.dcp_world);
    return {};
}

Expected<void> check_lists(const KeyLists& lists, const RaggedRows& rows) {
    if (lists.count == nullptr) return {};
    for (std::int64_t token = rows.q_indptr[0]; token < rows.q_indptr[rows.rows]; ++token)
        if (lists.count[token] < -1 || lists.count[token] > lists.stride)
            return fail(ErrorKind::invalid, "token {}: a list of {} keys, -1 to {} are possible",
                        token, lists.count[token], lists.stride);
    return {};
}

bool query_fits_cache(DType query, KvFormat format) {
    switch (format) {
        case KvFormat::f32:
            return query == DType::f32;
        case KvFormat::bf16:
            return query == DType::bf16;
        case KvFormat::fp16:
            return query == DType::f16;
        case KvFormat::fp8_tensor:
            return query != DType::f32;
        case KvFormat::fp8_token:
            return query == DType::bf16 || query == DType::f16;
    }
    return false;
}

Expected<void> check_up_weights(const linalg::WeightView& weights, std::string_view name,
                                std::int32_t heads, std::int64_t outputs, std::int64_t latent) {
    if (weights.data == nullptr || weights.count != heads || weights.n != outputs ||
        weights.k != latent)
        return fail(ErrorKind::invalid, "{} holds {} matrices [{}, {}], wanted are {} of [{}, {}]",
                    name, weights.data == nullptr ? 0 : weights.count, weights.n, weights.k, heads,
                    outputs, latent);
    if (weights.format.scaled() && weights.scales == nullptr)
        return fail(ErrorKind::invalid, "{} is {} without scales", name,
                    name_of(weights.format.code));
    if (weights.format.scaled() && weights.format.scale != ScaleType::f32)
        return fail(ErrorKind::unsupported, "{} is {} with scales that are not f32", name,
                    name_of(weights.format.code));
    return {};
}

// "512 and 64", or "512 and 64, or 256 and 64,".
template <typename Dims, typename Pair>
std::string alternatives(std::span<const Dims> compiled, Pair pair) {
    std::string text;
    for (const Dims& dims : compiled) {
        const auto [first, second] = pair(dims);
        text += fmt::format("{}{} and {}", text.empty() ? "" : ", or ", first, second);
    }
    return compiled.size() > 1 ? text + "," : text;
}

Expected<void> check_slot(const KvPages& kv, std::int64_t slot, std::string_view what,
                          std::int64_t index) {
    const std::int64_t slots = kv.page_count * kv.page_tokens;
    if (slot < 0 || slot >= slots)
        return fail(ErrorKind::invalid, "{} {} is slot {} of {}", what, index, slot, slots);
    return {};
}

}  // namespace

Expected<void> check_absorbed_arguments(const AbsorbedCall& call) {
    ESPALIER_RETURN_IF_ERROR(
        check_heads_and_output(call.heads, call.out_dtype, call.q, call.out, call.rows.token_end));
    if (!query_fits_cache(call.q_dtype, call.kv.format))
        return fail(ErrorKind::unsupported, "absorbed attention of {} queries over a {} cache",
                    name_of(call.q_dtype), name_of(call.kv.format));
    if (call.multiprocessors < 0)
        return fail(ErrorKind::invalid, "{} multiprocessors", call.multiprocessors);
    if (call.partial_bytes < 0)
        return fail(ErrorKind::invalid, "{} bytes for partial results", call.partial_bytes);
    ESPALIER_RETURN_IF_ERROR(check_pages(call.kv));
    ESPALIER_RETURN_IF_ERROR(check_row_arguments(call.rows));
    return check_list_arguments(call.lists, call.rows);
}

Expected<void> check_absorbed_arrays(const AbsorbedCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_absorbed_arguments(call));
    ESPALIER_RETURN_IF_ERROR(check_row_arrays(call.rows, call.kv));
    return check_lists(call.lists, call.rows);
}

namespace {

Expected<void> check_select_arguments(const SelectCall& call) {
    if (call.heads < 1 || call.heads > kMaxHeads)
        return fail(ErrorKind::unsupported, "{} heads of an indexer: 1 to {} are possible",
                    call.heads, kMaxHeads);
    if (call.q_dtype != DType::f32 && call.q_dtype != DType::bf16)
        return fail(ErrorKind::unsupported, "index queries of {}: f32 and bf16 are possible",
                    name_of(call.q_dtype));
    if (call.keys.format != KvFormat::f32 && call.keys.format != KvFormat::bf16)
        return fail(ErrorKind::unsupported, "index keys of {}: f32 and bf16 are possible",
                    name_of(call.keys.format));
    ESPALIER_RETURN_IF_ERROR(check_pages(call.keys));
    if (call.keys.dims.rope != 0)
        return fail(ErrorKind::invalid, "index keys of {} + {} columns: the second is 0",
                    call.keys.dims.latent, call.keys.dims.rope);
    ESPALIER_RETURN_IF_ERROR(check_row_arguments(call.rows));
    ESPALIER_RETURN_IF_ERROR(check_list_arguments(call.lists, call.rows));
    if (call.top_k < 1 || call.lists.count == nullptr || call.lists.stride < call.top_k)
        return fail(ErrorKind::invalid, "lists of {} keys for the best {}",
                    call.lists.count == nullptr ? 0 : call.lists.stride, call.top_k);
    if (call.rows.token_end > 0 && (call.q == nullptr || call.weights == nullptr))
        return fail(ErrorKind::invalid, "{} query tokens without index {}", call.rows.token_end,
                    call.q == nullptr ? "queries" : "weights");
    return {};
}

}  // namespace

Expected<void> check_select_arrays(const SelectCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_select_arguments(call));
    ESPALIER_RETURN_IF_ERROR(check_row_arrays(call.rows, call.keys));
    for (std::int32_t b = 0; b < call.rows.rows; ++b)
        if (call.rows.q_indptr[b + 1] > call.rows.q_indptr[b] &&
            call.rows.mask[b] == MaskKind::dense)
            return fail(ErrorKind::unsupported, "row {}: keys chosen with a dense mask", b);
    return {};
}

Expected<void> Kernels::check_indexer() const {
    return fail(ErrorKind::unsupported,
                "sparse attention, whose indexer chooses keys, is not there on this device; the "
                "CPU has it");
}
Expected<void> Kernels::select(OpContext&, const SelectCall&) const { return check_indexer(); }

Expected<void> check_decompressed_arguments(const DecompressedCall& call) {
    ESPALIER_RETURN_IF_ERROR(
        check_heads_and_output(call.heads, call.out_dtype, call.q, call.out, call.rows.token_end));
    if (call.q_dtype == DType::e4m3 || !query_fits_cache(call.q_dtype, call.kv.format))
        return fail(ErrorKind::unsupported, "decompressed attention of {} queries over a {} cache",
                    name_of(call.q_dtype), name_of(call.kv.format));
    ESPALIER_RETURN_IF_ERROR(check_pages(call.kv));
    ESPALIER_RETURN_IF_ERROR(check_row_arguments(call.rows));
    if (call.rows.dcp_world > 1)
        return fail(ErrorKind::unsupported, "decompressed attention over {} context-parallel ranks",
                    call.rows.dcp_world);
    const bool given = call.up_key.data != nullptr && call.up_value.data != nullptr;
    const HeadDims dims = given ? call.head_dims() : HeadDims{};
    if (dims.nope < 1 || dims.value < 1)
        return fail(ErrorKind::invalid, "heads of {} nope and {} value columns", dims.nope,
                    dims.value);
    const std::int64_t latent = call.kv.dims.latent;
    ESPALIER_RETURN_IF_ERROR(
        check_up_weights(call.up_key, "up_key", call.heads, dims.nope, latent));
    return check_up_weights(call.up_value, "up_value", call.heads, dims.value, latent);
}

Expected<void> check_decompressed_arrays(const DecompressedCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_decompressed_arguments(call));
    ESPALIER_RETURN_IF_ERROR(check_row_arrays(call.rows, call.kv));
    for (std::int32_t b = 0; b < call.rows.rows; ++b)
        if (call.rows.q_indptr[b + 1] > call.rows.q_indptr[b] &&
            call.rows.mask[b] != MaskKind::causal)
            return fail(ErrorKind::unsupported,
                        "row {}: decompressed attention with a mask that is not causal", b);
    return {};
}

Expected<void> check_append_arguments(const AppendCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_pages(call.kv));
    if (call.tokens < 0) return fail(ErrorKind::invalid, "append of {} tokens", call.tokens);
    const bool wants_rope = call.kv.dims.rope > 0;
    if (call.tokens > 0 &&
        (call.latent == nullptr || (wants_rope && call.rope == nullptr) || call.slot == nullptr))
        return fail(ErrorKind::invalid, "append of {} tokens without latent, rope or slot",
                    call.tokens);
    if (call.kv.format == KvFormat::fp8_tensor && !(call.kv.scale > 0.0f))
        return fail(ErrorKind::invalid, "an fp8_tensor cache with scale {}", call.kv.scale);
    return {};
}

Expected<void> check_append_arrays(const AppendCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_append_arguments(call));
    for (std::int64_t token = 0; token < call.tokens; ++token)
        if (call.slot[token] >= 0)
            ESPALIER_RETURN_IF_ERROR(check_slot(call.kv, call.slot[token], "token", token));
    return {};
}

Expected<void> check_compact_arguments(const CompactCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_pages(call.kv));
    if (call.moves < 0 ||
        (call.moves > 0 && (call.source == nullptr || call.destination == nullptr)))
        return fail(ErrorKind::invalid, "{} moves without source or destination", call.moves);
    return {};
}

Expected<void> check_compact_arrays(const CompactCall& call) {
    ESPALIER_RETURN_IF_ERROR(check_compact_arguments(call));
    for (std::int64_t i = 0; i < call.moves; ++i) {
        ESPALIER_RETURN_IF_ERROR(check_slot(call.kv, call.source[i], "source", i));
        ESPALIER_RETURN_IF_ERROR(check_slot(call.kv, call.destination[i], "destination", i));
    }
    return {};
}

Expected<void> check_compiled_dims(const CompiledDims& compiled, const KeyDims& keys) {
    if (std::ranges::count(compiled.keys, keys) > 0) return {};
    return fail(ErrorKind::unsupported,
                "attention over keys of {} latent and {} rotated columns: {} are possible",
                keys.latent, keys.rope, alternatives(compiled.keys, [](const KeyDims& dims) {
                    return std::pair(dims.latent, dims.rope);
                }));
}

Expected<void> check_compiled_dims(const CompiledDims& compiled, const KeyDims& keys,
                                   const HeadDims& heads) {
    ESPALIER_RETURN_IF_ERROR(check_compiled_dims(compiled, keys));
    if (std::ranges::count(compiled.heads, heads) > 0) return {};
    return fail(ErrorKind::unsupported,
                "decompressed attention of heads with {} nope and {} value columns: {} are "
                "possible",
                heads.nope, heads.value, alternatives(compiled.heads, [](const HeadDims& dims) {
                    return std::pair(dims.nope, dims.value);
                }));
}

Expected<void> check_cuda_pages(const KvPages& kv) {
    if (kv.format == KvFormat::f32)
        return fail(ErrorKind::unsupported,
                    "an f32 cache on CUDA: bf16, fp16, fp8_tensor and fp8_token are possible");
    ESPALIER_RETURN_IF_ERROR(check_cuda_address(kv.data, "the first page"));
    if (kv.page_stride % kCudaAlignment != 0)
        return fail(ErrorKind::invalid, "a page stride of {} bytes is no multiple of {}",
                    kv.page_stride, kCudaAlignment);
    return {};
}

Expected<void> check_cuda_slots(const KvPages& kv) {
    for (const SlotPart& part : slot_parts(kv.format, kv.dims, kv.page_tokens).part)
        if (part.bytes % 4 != 0)
            return fail(ErrorKind::unsupported,
                        "{} slots of {} + {} columns on CUDA: {} bytes of a slot lie together, "
                        "multiples of 4 are possible",
                        name_of(kv.format), kv.dims.latent, kv.dims.rope, part.bytes);
    return {};
}

Expected<void> check_cuda_address(const void* address, std::string_view name) {
    const auto bytes = reinterpret_cast<std::uintptr_t>(address) % kCudaAlignment;
    if (bytes != 0)
        return fail(ErrorKind::invalid, "{} lies {} bytes behind a multiple of {}", name, bytes,
                    kCudaAlignment);
    return {};
}

Expected<void> check_cuda_capacities(const AbsorbedCall& call) {
    const RaggedRows& rows = call.rows;
    if (call.lists.count != nullptr)
        return fail(ErrorKind::unsupported, "attention over lists of keys on CUDA");
    const std::int64_t packed = std::int64_t{rows.max_q_len} * call.heads;
    if (packed >= kMostPackedRows)
        return fail(ErrorKind::unsupported,
                    "{} query tokens × {} heads in one row, below 2^25 is possible", rows.max_q_len,
                    call.heads);
    if (rows.token_end * call.heads >= std::int64_t{1} << 31)
        return fail(ErrorKind::unsupported, "{} tokens × {} heads, below 2^31 is possible",
                    rows.token_end, call.heads);
    if (rows.rows * packed >= std::int64_t{1} << 29)  // quarters of them are counted
        return fail(ErrorKind::unsupported,
                    "{} rows of up to {} × {} packed rows: below 2^29 is possible", rows.rows,
                    rows.max_q_len, call.heads);
    // Flexible: the tiles of all rows, and two more for each. Invariant: no token is in more blocks
    // of packed rows than it would be alone, which are of 32 at least; a split of two tiles costs
    // three, and a tree's blocks have up to 32 paths besides.
    const std::int64_t tiles = std::int64_t{rows.max_kv_len} / 64 + 1;
    const std::int64_t blocks = rows.token_end * ((call.heads + 31) / 32);
    const std::int64_t line = call.invariant ? blocks * (2 * tiles + 32) : rows.rows * (tiles + 2);
    if (line >= std::int64_t{1} << 31)
        return fail(ErrorKind::unsupported,
                    "{} rows, {} tokens × {} heads over up to {} keys: too many tiles for one call",
                    rows.rows, rows.token_end, call.heads, rows.max_kv_len);
    return {};
}

}  // namespace espalier::mla
