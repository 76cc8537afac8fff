// SPDX-License-Identifier: Apache-2.0
#include "mla/c_api_calls.hpp"

namespace espalier::mla::c_api {
namespace {

static_assert(ESPALIER_MLA_F32 == static_cast<int>(DType::f32));
static_assert(ESPALIER_MLA_F16 == static_cast<int>(DType::f16));
static_assert(ESPALIER_MLA_BF16 == static_cast<int>(DType::bf16));
static_assert(ESPALIER_MLA_E4M3 == static_cast<int>(DType::e4m3));
static_assert(ESPALIER_MLA_KV_F32 == static_cast<int>(KvFormat::f32));
static_assert(ESPALIER_MLA_KV_BF16 == static_cast<int>(KvFormat::bf16));
static_assert(ESPALIER_MLA_KV_FP16 == static_cast<int>(KvFormat::fp16));
static_assert(ESPALIER_MLA_KV_FP8_TENSOR == static_cast<int>(KvFormat::fp8_tensor));
static_assert(ESPALIER_MLA_KV_FP8_TOKEN == static_cast<int>(KvFormat::fp8_token));
static_assert(ESPALIER_MLA_FULL == static_cast<int>(MaskKind::full));
static_assert(ESPALIER_MLA_CAUSAL == static_cast<int>(MaskKind::causal));
static_assert(ESPALIER_MLA_TREE == static_cast<int>(MaskKind::tree));
static_assert(ESPALIER_MLA_DENSE == static_cast<int>(MaskKind::dense));
static_assert(sizeof(MaskKind) == 1);

// A struct of the caller, if this library knows its size.
template <typename T>
Expected<void> check_struct(const T* given, std::string_view name) {
    if (given == nullptr) return fail(ErrorKind::invalid, "{} is NULL", name);
    if (given->size != sizeof(T))
        return fail(ErrorKind::invalid, "{} has size {}, this library (ABI {}) knows {}", name,
                    given->size, ESPALIER_MLA_ABI_VERSION, sizeof(T));
    return {};
}

template <typename Enum>
Expected<Enum> enumerator(std::int32_t value, Enum last, std::string_view name) {
    if (value < 0 || value > static_cast<std::int32_t>(last))
        return fail(ErrorKind::invalid, "{} is {}, 0 to {} are known", name, value,
                    static_cast<std::int32_t>(last));
    return static_cast<Enum>(value);
}

Expected<DType> dtype_of(std::int32_t value, std::string_view name) {
    return enumerator(value, DType::e4m3, name);
}

template <typename T>
const std::byte* bytes_at(const T* address) {
    return reinterpret_cast<const std::byte*>(address);
}

Expected<KvPages> pages_of(const espalier_mla_pages* given) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_pages"));
    ESPALIER_ASSIGN_OR_RETURN(const KvFormat format, format_of(given->format));
    const std::int64_t stride = given->page_stride == 0
                                    ? page_stride_bytes(format, given->page_tokens)
                                    : given->page_stride;
    return KvPages{static_cast<std::byte*>(given->data),
                   format,
                   given->page_tokens,
                   stride,
                   given->page_count,
                   given->scale};
}

Expected<RaggedRows> rows_of(const espalier_mla_rows* given) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_rows"));
    RaggedRows rows;
    rows.rows = given->rows;
    rows.token_end = given->token_end;
    rows.q_indptr = given->q_indptr;
    rows.kv_len = given->kv_len;
    rows.block_table = given->block_table;
    rows.block_stride = given->block_stride;
    rows.table_row = given->table_row;
    rows.table_rows = given->table_rows;
    rows.mask = reinterpret_cast<const MaskKind*>(given->mask);
    rows.tail_len = given->tail_len;
    rows.words = given->words;
    rows.custom_mask = given->custom_mask;
    rows.custom_mask_offset = given->custom_mask_offset;
    rows.custom_mask_len = given->custom_mask_len;
    rows.max_q_len = given->max_q_len;
    rows.max_kv_len = given->max_kv_len;
    rows.total_splits = given->total_splits;
    rows.dcp_world = given->dcp_world == 0 ? 1 : given->dcp_world;
    rows.dcp_rank = given->dcp_rank;
    rows.global_kv_len = given->global_kv_len;
    rows.first_slot = given->first_slot;
    return rows;
}

Expected<void> check_heads(std::int32_t heads) {
    if (heads < 1 || heads > 128)
        return fail(ErrorKind::unsupported, "{} heads: 1 to 128 are possible", heads);
    return {};
}

Expected<Capacities> checked(const Capacities& most) {
    ESPALIER_RETURN_IF_ERROR(check_heads(most.heads));
    if (most.rows < 0 || most.tokens < 0 || most.max_q_len < 0 || most.max_kv_len < 0 ||
        most.total_splits < 0 || most.tokens > std::int64_t{1} << 31 ||
        most.total_splits > std::int64_t{1} << 40)
        return fail(ErrorKind::invalid,
                    "capacities: {} rows, {} tokens, max_q_len {}, max_kv_len {}, total_splits {}",
                    most.rows, most.tokens, most.max_q_len, most.max_kv_len, most.total_splits);
    return most;
}

}  // namespace

Expected<KvFormat> format_of(std::int32_t value) {
    return enumerator(value, KvFormat::fp8_token, "the cache format");
}

Expected<Capacities> capacities_of(const espalier_mla_capacities* given, int workers) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_capacities"));
    return checked({.heads = given->heads,
                    .rows = given->rows,
                    .tokens = given->tokens,
                    .max_q_len = given->max_q_len,
                    .max_kv_len = given->max_kv_len,
                    .total_splits = given->total_splits,
                    .workers = workers,
                    .invariant = given->invariant != 0,
                    .dense = given->dense != 0,
                    .decompressed = given->decompressed != 0});
}

Expected<Capacities> capacities_of(const AbsorbedCall& call, int workers) {
    return checked({.heads = call.heads,
                    .rows = call.rows.rows,
                    .tokens = call.rows.token_end,
                    .max_q_len = call.rows.max_q_len,
                    .max_kv_len = call.rows.max_kv_len,
                    .total_splits = call.rows.total_splits,
                    .workers = workers,
                    .invariant = call.invariant,
                    .dense = call.rows.custom_mask != nullptr,
                    .decompressed = false});
}

// Without max_q_len, which is of absorbed calls: partial results of long rows would take gigabytes.
Expected<Capacities> capacities_of(const DecompressedCall& call, int workers) {
    return checked({.heads = call.heads,
                    .rows = call.rows.rows,
                    .tokens = call.rows.token_end,
                    .max_kv_len = call.rows.max_kv_len,
                    .workers = workers,
                    .invariant = false});
}

Expected<AbsorbedCall> call_of(const espalier_mla_absorbed_call* given) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_absorbed_call"));
    AbsorbedCall call;
    ESPALIER_ASSIGN_OR_RETURN(call.rows, rows_of(given->rows));
    ESPALIER_ASSIGN_OR_RETURN(call.kv, pages_of(given->kv));
    ESPALIER_ASSIGN_OR_RETURN(call.q_dtype, dtype_of(given->q_dtype, "q_dtype"));
    ESPALIER_ASSIGN_OR_RETURN(call.out_dtype, dtype_of(given->out_dtype, "out_dtype"));
    call.heads = given->heads;
    call.q = bytes_at(given->q);
    call.q_scale = given->q_scale;
    call.scale = given->scale;
    call.out = static_cast<std::byte*>(given->out);
    call.lse = given->lse;
    call.invariant = given->invariant != 0;
    call.multiprocessors = given->multiprocessors;
    call.plan = static_cast<std::byte*>(given->plan);
    return call;
}

Expected<DecompressedCall> call_of(const espalier_mla_decompressed_call* given, DeviceKind device) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_decompressed_call"));
    DecompressedCall call;
    ESPALIER_ASSIGN_OR_RETURN(call.rows, rows_of(given->rows));
    ESPALIER_ASSIGN_OR_RETURN(call.kv, pages_of(given->kv));
    ESPALIER_ASSIGN_OR_RETURN(call.q_dtype, dtype_of(given->q_dtype, "q_dtype"));
    ESPALIER_ASSIGN_OR_RETURN(call.out_dtype, dtype_of(given->out_dtype, "out_dtype"));
    ESPALIER_RETURN_IF_ERROR(check_heads(given->heads));
    call.heads = given->heads;
    call.q = bytes_at(given->q);
    call.scale = given->scale;
    call.out = static_cast<std::byte*>(given->out);
    call.lse = given->lse;
    const bool cuda = device == DeviceKind::cuda;
    if ((cuda ? given->up_rows : given->up_packed) == nullptr)
        return fail(ErrorKind::invalid, "decompressed attention on {} without {}",
                    cuda ? "CUDA" : "the CPU", cuda ? "up_rows" : "up_packed");
    constexpr std::int64_t kHalf = kNope * kLatent * 2;  // bytes of one head's keys, or values
    call.up_key = {.format = {.code = WeightCode::bf16},
                   .layout = cuda ? linalg::WeightLayout::rows : linalg::WeightLayout::panels,
                   .count = call.heads,
                   .n = kNope,
                   .k = kLatent,
                   .matrix_bytes = cuda ? 2 * kHalf : kHalf,
                   .data = bytes_at(cuda ? given->up_rows : given->up_packed)};
    call.up_value = call.up_key;
    call.up_value.data += cuda ? kHalf : call.heads * kHalf;
    return call;
}

Expected<AppendCall> call_of(const espalier_mla_append_call* given) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_append_call"));
    AppendCall call;
    ESPALIER_ASSIGN_OR_RETURN(call.kv, pages_of(given->kv));
    call.tokens = given->tokens;
    call.latent = given->latent;
    call.latent_stride = given->latent_stride;
    call.rope = given->rope;
    call.rope_stride = given->rope_stride;
    call.slot = given->slot;
    call.nonfinite = given->nonfinite;
    return call;
}

Expected<CompactCall> call_of(const espalier_mla_compact_call* given) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_compact_call"));
    CompactCall call;
    ESPALIER_ASSIGN_OR_RETURN(call.kv, pages_of(given->kv));
    call.moves = given->moves;
    call.source = given->source;
    call.destination = given->destination;
    return call;
}

Expected<CompatCall> call_of(const espalier_mla_compat_call* given) {
    ESPALIER_RETURN_IF_ERROR(check_struct(given, "espalier_mla_compat_call"));
    CompatCall call;
    ESPALIER_ASSIGN_OR_RETURN(const KvFormat format, format_of(given->kv_format));
    ESPALIER_ASSIGN_OR_RETURN(call.attention.q_dtype, dtype_of(given->q_dtype, "q_dtype"));
    ESPALIER_ASSIGN_OR_RETURN(call.attention.out_dtype, dtype_of(given->out_dtype, "out_dtype"));
    // The cache is only read: its pages are the absorbed call's, which holds them for all entries.
    call.attention.kv = {static_cast<std::byte*>(const_cast<void*>(given->kv_cache)),
                         format,
                         given->page_size,
                         page_stride_bytes(format, given->page_size),
                         given->num_pages,
                         given->kv_scale};
    call.attention.heads = given->heads;
    call.attention.q = bytes_at(given->q);
    call.attention.q_scale = given->q_scale;
    call.attention.scale = given->softmax_scale;
    call.attention.out = static_cast<std::byte*>(given->out);
    call.attention.lse = given->lse;
    call.attention.invariant = given->invariant != 0;
    call.batch = given->batch;
    call.q_len = given->q_len;
    call.max_pages = given->max_pages;
    call.max_seq_len = given->max_seq_len;
    call.block_tables = given->block_tables;
    call.seq_lens = given->seq_lens;
    call.causal = given->causal != 0;
    call.custom_mask = given->custom_mask;
    call.custom_mask_offset = given->cmask_off;
    call.custom_mask_len = given->custom_mask_len;
    ESPALIER_RETURN_IF_ERROR(check_compat(call));
    ESPALIER_RETURN_IF_ERROR(check_heads(call.attention.heads));
    return call;
}

}  // namespace espalier::mla::c_api
