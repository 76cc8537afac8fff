// SPDX-License-Identifier: Apache-2.0
#include "structs.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace espalier::python {
namespace {

constexpr std::int64_t kKey = 576;  // columns of a slot
constexpr long long kMissing = std::numeric_limits<long long>::min();

struct Format {
    const char* name;
    std::int32_t value;
    Type type;
};
constexpr Format kFormats[] = {{"f32", ESPALIER_MLA_KV_F32, Type::f32},
                               {"bf16", ESPALIER_MLA_KV_BF16, Type::bf16},
                               {"fp16", ESPALIER_MLA_KV_FP16, Type::f16},
                               {"fp8_tensor", ESPALIER_MLA_KV_FP8_TENSOR, Type::e4m3},
                               {"fp8_token", ESPALIER_MLA_KV_FP8_TOKEN, Type::e4m3}};

std::int32_t required(const char* name, long long value) {
    if (value == kMissing) {
        PyErr_Format(PyExc_TypeError, "Rows() needs %s", name);
        throw Raised{};
    }
    return int32_of(name, value);
}

// The format that a tensor's type stands for, unless one is named.
const Format& format_of(const Array& data, const char* name) {
    const bool codes = data.type() == Type::u8 || data.type() == Type::e4m3;
    for (const Format& format : kFormats) {
        const bool suits = data.type() == format.type || (codes && format.type == Type::e4m3);
        if (name == nullptr ? data.type() == format.type : std::strcmp(name, format.name) == 0) {
            if (suits) return format;
            refuse(ESPALIER_MLA_INVALID, "the cache is {}, which is not {}", data.describe(), name);
        }
    }
    if (name != nullptr)
        refuse(ESPALIER_MLA_INVALID,
               "the cache format {}: f32, bf16, fp16, fp8_tensor and fp8_token are possible", name);
    refuse(ESPALIER_MLA_INVALID,
           "the cache is {}: float32, bfloat16, float16 or float8_e4m3fn is possible, or uint8 "
           "with the format fp8_tensor or fp8_token",
           data.describe());
}

std::int64_t tight_stride(std::int32_t format, std::int32_t page_tokens) {
    std::int64_t bytes = 0;
    const auto status = espalier_mla_page_stride(format, page_tokens, &bytes);
    if (status != ESPALIER_MLA_OK) throw Refused{status, espalier_mla_last_error()};
    return bytes;
}

// [pages, slots, 576] or [pages, slots, 1, 576]; returns the slots of a page.
std::int64_t slots_of(const Array& data) {
    const int last = data.dims() - 1;
    if ((last != 2 && last != 3) || data.size(last) != kKey || (last == 3 && data.size(2) != 1))
        refuse(ESPALIER_MLA_INVALID,
               "the cache is {}, wanted is [pages, page_tokens, 576] or [pages, page_tokens, 1, "
               "576]",
               data.describe());
    const std::int64_t slots = data.size(1);
    if (data.stride(last) != 1 || (slots > 1 && data.stride(1) != kKey))
        refuse(ESPALIER_MLA_INVALID,
               "the cache's slots lie {} and their columns {} numbers apart: only its pages may "
               "have gaps between them",
               data.stride(1), data.stride(last));
    return slots;
}

// [pages, bytes]; returns the slots of a page.
std::int64_t token_slots_of(const Array& data, long long page_tokens) {
    if (data.dims() != 2 || page_tokens == kMissing)
        refuse(ESPALIER_MLA_INVALID,
               "the cache is {}, wanted is uint8 [pages, bytes] and page_tokens for fp8_token",
               data.describe());
    const std::int64_t least =
        tight_stride(ESPALIER_MLA_KV_FP8_TOKEN, int32_of("page_tokens", page_tokens));
    if (data.size(1) < least || data.stride(1) != 1)
        refuse(ESPALIER_MLA_INVALID,
               "the cache's pages have {} bytes that lie {} apart, wanted are at least {} (see "
               "page_stride) that lie close",
               data.size(1), data.stride(1), least);
    const auto behind = reinterpret_cast<std::uintptr_t>(data.data<std::byte>()) % 16;
    if (behind != 0 || (data.size(0) > 1 && data.stride(0) % 16 != 0))
        refuse(ESPALIER_MLA_INVALID,
               "the cache lies {} bytes behind a multiple of 16, its pages {} bytes apart", behind,
               data.stride(0));
    return page_tokens;
}

// Row arrays: one number per row.
void expect_rows(const std::optional<Array>& array, Type type, std::int64_t rows,
                 const Device& device) {
    if (array) array->expect_contiguous({type}, {rows}, device);
}

}  // namespace

std::int32_t int32_of(const char* name, long long value) {
    if (value < std::numeric_limits<std::int32_t>::min() ||
        value > std::numeric_limits<std::int32_t>::max())
        refuse(ESPALIER_MLA_INVALID, "{} is {}, which 32 bits do not hold", name, value);
    return static_cast<std::int32_t>(value);
}

float finite(const char* name, double value) {
    const float rounded = static_cast<float>(value);
    if (!std::isfinite(rounded)) refuse(ESPALIER_MLA_INVALID, "{} is {}", name, value);
    return rounded;
}

const char* format_name(std::int32_t format) {
    for (const Format& known : kFormats)
        if (known.value == format) return known.name;
    return "?";
}

std::int32_t format_named(const char* name) {
    for (const Format& known : kFormats)
        if (std::strcmp(name, known.name) == 0) return known.value;
    refuse(ESPALIER_MLA_INVALID,
           "the cache format {}: f32, bf16, fp16, fp8_tensor and fp8_token are possible", name);
}

Pages Pages::parse(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"data", "format", "page_tokens", "scale", nullptr};
    PyObject* tensor = nullptr;
    const char* format_word = nullptr;
    long long page_tokens = kMissing;
    double scale = 1.0;
    python::parse(arguments, keywords, "O|$zLd:Pages", names, &tensor, &format_word, &page_tokens,
                  &scale);
    Array data(tensor, "the cache");
    const Format& format = format_of(data, format_word);
    const bool by_token = format.value == ESPALIER_MLA_KV_FP8_TOKEN;
    const std::int64_t slots = by_token ? token_slots_of(data, page_tokens) : slots_of(data);
    if (page_tokens != kMissing && page_tokens != slots)
        refuse(ESPALIER_MLA_INVALID, "the cache has pages of {} slots, page_tokens is {}", slots,
               page_tokens);
    espalier_mla_pages c{};
    c.size = sizeof c;
    c.data = data.data();
    c.format = format.value;
    c.page_tokens = int32_of("page_tokens", slots);
    c.page_count = data.size(0);
    c.scale = finite("the cache's scale", scale);
    const std::int64_t least = tight_stride(c.format, c.page_tokens);
    c.page_stride = data.size(0) > 1 ? data.stride(0) * data.element_bytes() : least;
    if (c.page_stride < least)
        refuse(ESPALIER_MLA_INVALID, "the cache's pages of {} bytes lie {} apart", least,
               c.page_stride);
    return Pages{std::move(data), c};
}

std::int32_t block_stride_of(const Array& table) {
    const std::int64_t width = table.size(1);
    const std::int64_t stride = table.size(0) > 1 && width > 0 ? table.stride(0) : width;
    if (stride < width || (width > 1 && table.stride(1) != 1))
        refuse(ESPALIER_MLA_INVALID,
               "block_table of {} entries per row has rows {} and entries {} apart: only rows may "
               "have gaps between them",
               width, stride, table.stride(1));
    return int32_of("block_table's row", stride);
}

void check_table_reach(const Array& table, std::int32_t max_kv_len, std::int32_t page_tokens) {
    const std::int64_t width = table.size(1);
    if (block_stride_of(table) > width && max_kv_len > width * page_tokens)
        refuse(ESPALIER_MLA_INVALID,
               "{} slots reach beyond the {} entries of block_table, whose rows have gaps between "
               "them",
               max_kv_len, width);
}

Rows Rows::parse(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {
        "q_indptr",           "kv_len",     "block_table",   "mask",      "token_end",
        "max_q_len",          "max_kv_len", "tail_len",      "words",     "custom_mask",
        "custom_mask_offset", "table_row",  "global_kv_len", "dcp_world", "dcp_rank",
        "total_splits",       "first_slot", nullptr};
    PyObject *q_indptr, *kv_len, *block_table, *mask;
    PyObject *tail_len = nullptr, *words = nullptr, *custom_mask = nullptr, *offset = nullptr,
             *table_row = nullptr, *global_kv_len = nullptr;
    long long token_end = kMissing, max_q_len = kMissing, max_kv_len = kMissing;
    long long dcp_world = 1, dcp_rank = 0, total_splits = 0, first_slot = 0;
    python::parse(arguments, keywords, "OOOO|$LLLOOOOOOLLLL:Rows", names, &q_indptr, &kv_len,
                  &block_table, &mask, &token_end, &max_q_len, &max_kv_len, &tail_len, &words,
                  &custom_mask, &offset, &table_row, &global_kv_len, &dcp_world, &dcp_rank,
                  &total_splits, &first_slot);
    espalier_mla_rows numbers{};
    numbers.size = sizeof numbers;
    numbers.token_end = required("token_end", token_end);
    numbers.max_q_len = required("max_q_len", max_q_len);
    numbers.max_kv_len = required("max_kv_len", max_kv_len);
    numbers.dcp_world = int32_of("dcp_world", dcp_world);
    numbers.dcp_rank = int32_of("dcp_rank", dcp_rank);
    numbers.total_splits = total_splits;
    numbers.first_slot = int32_of("first_slot", first_slot);
    Rows rows{.q_indptr = Array(q_indptr, "q_indptr"),
              .kv_len = Array(kv_len, "kv_len"),
              .block_table = Array(block_table, "block_table"),
              .mask = Array(mask, "mask"),
              .tail_len = optional_array(tail_len, "tail_len"),
              .words = optional_array(words, "words"),
              .custom_mask = optional_array(custom_mask, "custom_mask"),
              .custom_mask_offset = optional_array(offset, "custom_mask_offset"),
              .table_row = optional_array(table_row, "table_row"),
              .global_kv_len = optional_array(global_kv_len, "global_kv_len"),
              .numbers = numbers};

    const Device device = rows.device();
    rows.kv_len.expect_contiguous({Type::i32}, {kAnySize}, device);
    const std::int64_t count = rows.kv_len.size(0);
    rows.numbers.rows = int32_of("the number of rows", count);
    rows.q_indptr.expect_contiguous({Type::i32}, {count + 1}, device);
    rows.mask.expect_contiguous({Type::u8}, {count}, device);
    rows.block_table.expect({Type::i32}, {rows.table_row ? kAnySize : count, kAnySize}, device);
    rows.numbers.block_stride = block_stride_of(rows.block_table);
    if (rows.table_row)
        rows.numbers.table_rows = int32_of("the number of block tables", rows.block_table.size(0));
    expect_rows(rows.table_row, Type::i32, count, device);
    expect_rows(rows.tail_len, Type::i32, count, device);
    expect_rows(rows.global_kv_len, Type::i32, count, device);
    expect_rows(rows.custom_mask_offset, Type::i64, count, device);
    if (rows.words)
        rows.words->expect_contiguous({Type::i64, Type::u64}, {rows.numbers.token_end}, device);
    if (rows.custom_mask) {
        rows.custom_mask->expect_contiguous({Type::boolean, Type::u8}, {kAnySize}, device);
        rows.numbers.custom_mask_len = rows.custom_mask->size(0);
    }
    return rows;
}

void Rows::check_reach(std::int32_t page_tokens) const {
    check_table_reach(block_table, numbers.max_kv_len, page_tokens);
}

void Rows::read_by(Footprint& footprint) const {
    for (const Array* array : {&q_indptr, &kv_len, &block_table, &mask}) footprint.reads(*array);
    for (const std::optional<Array>* array :
         {&tail_len, &words, &custom_mask, &custom_mask_offset, &table_row, &global_kv_len})
        footprint.reads(*array);
}

espalier_mla_rows Rows::c() const {
    espalier_mla_rows c = numbers;
    c.q_indptr = q_indptr.data<std::int32_t>();
    c.kv_len = kv_len.data<std::int32_t>();
    c.block_table = block_table.data<std::int32_t>();
    c.mask = mask.data<std::uint8_t>();
    c.tail_len = data_of<std::int32_t>(tail_len);
    c.words = data_of<std::uint64_t>(words);
    c.custom_mask = data_of<std::uint8_t>(custom_mask);
    c.custom_mask_offset = data_of<std::int64_t>(custom_mask_offset);
    c.table_row = data_of<std::int32_t>(table_row);
    c.global_kv_len = data_of<std::int32_t>(global_kv_len);
    return c;
}

espalier_mla_capacities Rows::capacities(std::int32_t heads, bool invariant) const {
    espalier_mla_capacities most{};
    most.size = sizeof most;
    most.heads = heads;
    most.rows = numbers.rows;
    most.tokens = numbers.token_end;
    most.max_q_len = numbers.max_q_len;
    most.max_kv_len = numbers.max_kv_len;
    most.invariant = invariant ? 1 : 0;
    most.dense = data_of<std::uint8_t>(custom_mask) != nullptr ? 1 : 0;
    most.total_splits = numbers.total_splits;
    return most;
}

Plan Plan::parse(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"memory", nullptr};
    PyObject* tensor = nullptr;
    python::parse(arguments, keywords, "O:Plan", names, &tensor);
    Plan plan{.memory = Array(tensor, "the plan"), .filled = std::nullopt};
    plan.memory.expect_contiguous({Type::u8}, {kAnySize}, plan.memory.device());
    return plan;
}

}  // namespace espalier::python
