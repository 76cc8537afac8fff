// SPDX-License-Identifier: Apache-2.0
#include "conformance/batch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "mla/storage.hpp"

namespace espalier::conformance {

using namespace mla;

DType usual_query(KvFormat format) {
    switch (format) {
        case KvFormat::f32:
            return DType::f32;
        case KvFormat::fp16:
            return DType::f16;
        case KvFormat::bf16:
        case KvFormat::fp8_tensor:
        case KvFormat::fp8_token:
            return DType::bf16;
    }
    return DType::f32;
}

std::vector<std::byte> narrowed(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
    const auto all = [&](auto narrow) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto stored = narrow(values[i]);
            std::memcpy(bytes.data() + i * sizeof(stored), &stored, sizeof(stored));
        }
    };
    switch (dtype) {
        case DType::f32:
            all([](float value) { return value; });
            break;
        case DType::f16:
            all([](float value) { return to_fp16(value); });
            break;
        case DType::bf16:
            all([](float value) { return to_bf16(value); });
            break;
        case DType::e4m3:
            all([](float value) { return to_e4m3(value); });
            break;
    }
    return bytes;
}

std::vector<float> widened(const std::vector<std::byte>& bytes, DType dtype) {
    std::vector<float> values(bytes.size() / bytes_of(dtype));
    const auto all = [&](auto stored) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            std::memcpy(&stored, bytes.data() + i * sizeof(stored), sizeof(stored));
            values[i] = to_float(stored);
        }
    };
    switch (dtype) {
        case DType::f32:
            all(float{});
            break;
        case DType::f16:
            all(Fp16{});
            break;
        case DType::bf16:
            all(Bf16{});
            break;
        case DType::e4m3:
            all(E4m3{});
            break;
    }
    return values;
}

Batch::Batch(KvFormat format, int heads, const std::vector<Row>& rows, const Layout& layout,
             std::int64_t columns)
    : layout_(layout),
      heads_(heads),
      columns_(columns == kKey ? layout.dims.key() : columns),
      query_dtype_(layout.query.value_or(usual_query(format))) {
    kv_.format = format;
    kv_.page_tokens = layout.page_tokens;
    kv_.dims = layout.dims;
    kv_.page_stride = page_stride_bytes(format, layout.page_tokens, layout.dims);
    view_.dcp_world = layout.dcp_world;
    view_.dcp_rank = layout.dcp_rank;
    view_.first_slot = layout.first_slot;
    kv_.scale = 0.02f;  // keys of variance 1 end at 4.5 deviations: 225 of 448
    lay_pages(rows);
    lay_rows(rows);
    lay_queries(rows);
    add_reserve();
    point_view();
}

Capacities Batch::capacities(int workers, bool invariant) const {
    return {.heads = heads_,
            .rows = view_.rows,
            .tokens = view_.token_end,
            .max_q_len = view_.max_q_len,
            .max_kv_len = view_.max_kv_len,
            .total_splits = view_.total_splits,
            .workers = workers,
            .invariant = invariant,
            .dense = !image_.custom_mask.empty()};
}

// Pages of all rows dealt from a shuffled pool in which every third page belongs to no row.
void Batch::lay_pages(const std::vector<Row>& rows) {
    std::int64_t needed = 0;
    std::int64_t longest = 0;
    for (const Row& row : rows) {
        const std::int64_t pages = (slots(row) + layout_.page_tokens - 1) / layout_.page_tokens;
        needed += pages;
        longest = std::max(longest, pages);
    }
    kv_.page_count = std::max<std::int64_t>(needed + needed / 3 + 2, layout_.reserve.pages);
    image_.pages.resize(static_cast<std::size_t>(kv_.page_count * kv_.page_stride));
    for (std::size_t i = 0; i + 4 <= image_.pages.size(); i += 4)
        std::memcpy(image_.pages.data() + i, &layout_.poison, 4);
    kv_.data = image_.pages.data();
    std::vector<std::int32_t> free(static_cast<std::size_t>(kv_.page_count));
    std::iota(free.begin(), free.end(), 0);
    Random random(layout_.seed);
    for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[random.bits() % i]);
    view_.block_stride =
        std::max<std::int64_t>({1, longest + layout_.spare_entries, layout_.reserve.block_entries});
    lay_tables(rows.size(), random);
    for (std::size_t b = 0; b < rows.size(); ++b)
        lay_row_keys(rows[b], image_.block_table.data() + image_.table_row[b] * view_.block_stride,
                     free);
}

// Tables of garbage, and which of them the rows will have. By slot there are three that no row has.
void Batch::lay_tables(std::size_t rows, Random& random) {
    const std::size_t most = std::max(rows, static_cast<std::size_t>(layout_.reserve.rows));
    std::vector<std::int32_t> tables(most + (layout_.by_slot ? 3 : 0));
    std::iota(tables.begin(), tables.end(), 0);
    if (layout_.by_slot)
        for (std::size_t i = tables.size(); i > 1; --i)
            std::swap(tables[i - 1], tables[random.bits() % i]);
    view_.table_rows = static_cast<std::int32_t>(tables.size());
    image_.block_table.resize(tables.size() * static_cast<std::size_t>(view_.block_stride));
    for (std::int32_t& page : image_.block_table)
        page = random.chance(0.5) ? -1 : static_cast<std::int32_t>(random.bits());
    image_.table_row.assign(tables.begin(), tables.begin() + static_cast<std::ptrdiff_t>(rows));
}

void Batch::lay_row_keys(const Row& row, std::int32_t* table, std::vector<std::int32_t>& free) {
    for (std::int64_t entry = 0; entry * layout_.page_tokens < slots(row); ++entry) {
        table[entry] = free.back();
        free.pop_back();
    }
    for (int c = 0; c < row.keys; ++c) {
        const std::int64_t slot =
            pool_slot(table, layout_.page_tokens, first_local_slot(view_) + c);
        const float* key = row.key.data() + c * kKey;
        write_slot(kv_, slot, key, key + kLatent);
    }
}

std::int64_t Batch::slot(std::size_t row, std::int64_t c) const {
    return pool_slot(table(row), layout_.page_tokens, first_local_slot(view_) + c);
}

// A mask speaks of slots below first_slot too: they look visible.
void Batch::lay_mask(const Row& row) {
    if (row.mask != MaskKind::dense || std::ssize(row.dense) != row.tokens * row.keys) return;
    for (int i = 0; i < row.tokens; ++i) {
        image_.custom_mask.insert(image_.custom_mask.end(), slots(row) - row.keys, 0xff);
        const auto seen = row.dense.begin() + i * row.keys;
        image_.custom_mask.insert(image_.custom_mask.end(), seen, seen + row.keys);
    }
}

void Batch::lay_rows(const std::vector<Row>& rows) {
    image_.words.assign(static_cast<std::size_t>(layout_.leading_tokens), ~0ull);
    image_.q_indptr.push_back(layout_.leading_tokens);
    for (const Row& row : rows) {
        image_.q_indptr.push_back(image_.q_indptr.back() + row.tokens);
        image_.kv_len.push_back(slots(row));
        image_.tail_len.push_back(row.tail);
        image_.mask.push_back(row.mask);
        image_.global_kv_len.push_back(static_cast<std::int32_t>(row.global_keys) +
                                       first_local_slot(view_) * layout_.dcp_world);
        image_.words.insert(image_.words.end(), row.words.begin(), row.words.end());
        image_.custom_mask_offset.push_back(
            row.malformed ? row.mask_offset : static_cast<std::int64_t>(image_.custom_mask.size()));
        lay_mask(row);
        view_.max_q_len = std::max(view_.max_q_len, row.tokens);
        view_.max_kv_len = std::max(view_.max_kv_len, slots(row));
        view_.total_splits += row_splits(row.tokens, slots(row));
    }
    view_.total_splits = std::max(view_.total_splits, layout_.reserve.total_splits);
    if (!layout_.tight) view_.total_splits = 0;
}

void Batch::add_query(const Row& row, std::vector<float>& query) const {
    if (std::ssize(row.query) == row.tokens * heads_ * columns_) {
        query.insert(query.end(), row.query.begin(), row.query.end());
        return;
    }
    for (auto at = row.query.begin(); at != row.query.end(); at += kKey) {
        query.insert(query.end(), at, at + layout_.dims.latent);
        query.insert(query.end(), at + kLatent, at + kKey);
    }
}

// e4m3 queries use the whole range of the format.
void Batch::lay_queries(const std::vector<Row>& rows) {
    const auto padding = static_cast<std::size_t>(heads_ * columns_);
    const float poison = std::bit_cast<float>(layout_.poison);
    std::vector<float> query(static_cast<std::size_t>(layout_.leading_tokens) * padding, poison);
    for (const Row& row : rows) add_query(row, query);
    const int end =
        std::max(image_.q_indptr.back() + layout_.padding_tokens, layout_.reserve.tokens);
    query.resize(static_cast<std::size_t>(end) * padding, poison);
    if (query_dtype_ == DType::e4m3) {
        float largest = 1e-3f;
        for (const Row& row : rows)
            for (const float x : row.query) largest = std::max(largest, std::fabs(x));
        query_scale_ = largest / 448.0f;
        for (float& x : query) x /= query_scale_;
    }
    image_.query = narrowed(query, query_dtype_);
    image_.words.resize(static_cast<std::size_t>(end), ~0ull);
    view_.token_end = end;
}

void Batch::add_reserve() {
    const Reserve& reserve = layout_.reserve;
    Random random(layout_.seed + 1);
    view_.max_q_len = std::max(view_.max_q_len, reserve.max_q_len);
    view_.max_kv_len = std::max(view_.max_kv_len, reserve.max_kv_len);
    while (static_cast<int>(image_.kv_len.size()) < reserve.rows) {
        image_.q_indptr.push_back(image_.q_indptr.back());
        image_.kv_len.push_back(random.between(0, view_.max_kv_len));
        image_.tail_len.push_back(random.between(0, 64));
        image_.mask.push_back(static_cast<MaskKind>(random.between(0, 3)));
        image_.global_kv_len.push_back(image_.kv_len.back());
        image_.custom_mask_offset.push_back(malformed_offset(random));
        image_.table_row.push_back(static_cast<std::int32_t>(random.bits()));
    }
    if (image_.custom_mask.size() < static_cast<std::size_t>(reserve.mask_bytes))
        image_.custom_mask.resize(static_cast<std::size_t>(reserve.mask_bytes), 0xff);
}

void Batch::point_view() {
    view_.rows = static_cast<std::int32_t>(image_.kv_len.size());
    view_.q_indptr = image_.q_indptr.data();
    view_.kv_len = image_.kv_len.data();
    view_.block_table = image_.block_table.data();
    view_.table_row = layout_.by_slot ? image_.table_row.data() : nullptr;
    view_.mask = image_.mask.data();
    view_.tail_len = image_.tail_len.data();
    view_.words = image_.words.data();
    view_.custom_mask = image_.custom_mask.data();
    view_.custom_mask_offset = image_.custom_mask_offset.data();
    view_.custom_mask_len = static_cast<std::int64_t>(image_.custom_mask.size());
    view_.global_kv_len = layout_.dcp_world > 1 ? image_.global_kv_len.data() : nullptr;
}

}  // namespace espalier::conformance
