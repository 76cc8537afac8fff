// SPDX-License-Identifier: Apache-2.0
// Hostile attention problems. A Row is what a request means: queries, keys and a mask. A Batch lays
// rows into shuffled pages with poison wherever nothing may be read. The same row in another batch
// must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "mla/contract.hpp"
#include "mla/storage.hpp"

namespace espalier::mla {

// Small and fast; the same numbers everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
    std::uint64_t bits() {
        state_ += 0x9e3779b97f4a7c15ull;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    int between(int low, int high) {
        return low + static_cast<int>(bits() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool chance(double p) { return static_cast<double>(bits() >> 11) * 0x1p-53 < p; }
    // Nearly normal: the sum of four uniforms, scaled to variance 1.
    float normal() {
        const std::uint64_t z = bits();
        std::int64_t sum = 0;
        for (int part = 0; part < 4; ++part)
            sum += static_cast<std::int64_t>((z >> (16 * part)) & 0xffff);
        return (static_cast<float>(sum) / 65536.0f - 2.0f) * 1.7320508f;
    }

  private:
    std::uint64_t state_;
};

struct Row {
    MaskKind mask = MaskKind::causal;
    int tokens = 0;
    int keys = 0;
    int tail = 0;                      // tree rows
    std::int64_t global_keys = 0;      // context parallel
    std::vector<float> query;          // [tokens, heads, columns]
    std::vector<float> key;            // [keys, 576]
    std::vector<std::uint64_t> words;  // [tokens]
    std::vector<std::uint8_t> dense;   // [tokens, keys]
    bool malformed = false;            // dense: use mask_offset as it is
    std::int64_t mask_offset = 0;
};

enum class Spread { normal, flat, peaked };

inline Row make_row(Random& random, MaskKind mask, int heads, int tokens, int keys,
                    Spread spread = Spread::normal, std::int64_t columns = kKey) {
    Row row;
    row.mask = mask;
    row.tokens = tokens;
    row.keys = keys;
    row.tail = tokens;
    row.global_keys = keys;
    row.key.resize(static_cast<std::size_t>(keys * kKey));
    for (float& x : row.key) x = random.normal();
    row.query.resize(static_cast<std::size_t>(tokens * heads * columns));
    const float size = spread == Spread::flat ? 0.01f : spread == Spread::peaked ? 4.0f : 1.0f;
    for (float& x : row.query) x = random.normal() * size;
    row.words.assign(static_cast<std::size_t>(tokens), 0);
    return row;
}

enum class Shape { chain, star, binary, random, disconnected, deep_tail };
inline constexpr Shape kShapes[] = {Shape::chain,  Shape::star,         Shape::binary,
                                    Shape::random, Shape::disconnected, Shape::deep_tail};

// Ancestor-or-self words over the last `tail` slots; the row's tokens are the tail's last ones. A
// disconnected row has any words at all, tokens that do not see themselves and tokens that see
// nothing of the tail included.
inline void grow_tree(Random& random, Row& row, Shape shape) {
    row.tail = shape == Shape::deep_tail ? random.between(row.tokens, 64) : row.tokens;
    std::vector<std::uint64_t> nodes(static_cast<std::size_t>(row.tail));
    for (int node = 0; node < row.tail; ++node) {
        int parent = node - 1;
        if (shape == Shape::star) parent = 0;
        if (shape == Shape::binary) parent = (node - 1) / 2;
        if (shape == Shape::random || shape == Shape::deep_tail)
            parent = node == 0 ? -1 : random.between(0, node - 1);
        const std::uint64_t above =
            node == 0 || parent < 0 ? 0 : nodes[static_cast<std::size_t>(parent)];
        nodes[static_cast<std::size_t>(node)] = above | (std::uint64_t{1} << node);
    }
    for (int i = 0; i < row.tokens; ++i) {
        std::uint64_t& word = row.words[static_cast<std::size_t>(i)];
        word = nodes[static_cast<std::size_t>(row.tail - row.tokens + i)];
        if (shape == Shape::disconnected)
            word = random.chance(0.2) ? 0 : random.bits() & random.bits();
    }
}

inline void punch_holes(Random& random, Row& row, double visible) {
    row.dense.resize(static_cast<std::size_t>(row.tokens * row.keys));
    // Any nonzero byte means visible, the ones with the top bit too.
    for (std::uint8_t& byte : row.dense)
        byte = random.chance(visible) ? static_cast<std::uint8_t>(random.between(1, 255))
                                      : std::uint8_t{0};
}

// Ragged rows with every mask; about `budget` (token, head, key) scores in all.
inline std::vector<Row> hostile_rows(Random& random, int heads, std::int64_t budget,
                                     Spread spread = Spread::normal) {
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::causal, heads, 0, 37));
    rows.push_back(make_row(random, MaskKind::causal, heads, 2, 0));
    rows.push_back(make_row(random, MaskKind::causal, heads, 5, 3, spread));  // kv_len < q_len
    while (budget > 0) {
        const auto mask = static_cast<MaskKind>(random.between(0, 3));
        const int keys = random.chance(0.3) ? random.between(0, 40) : random.between(100, 700);
        const int most =
            static_cast<int>(std::clamp<std::int64_t>(budget / (heads * (keys + 1)), 1, 64));
        Row row = make_row(random, mask, heads, random.between(1, most), keys, spread);
        if (mask == MaskKind::tree) grow_tree(random, row, kShapes[random.between(0, 5)]);
        if (mask == MaskKind::dense) punch_holes(random, row, random.chance(0.5) ? 0.9 : 0.2);
        budget -= std::int64_t{row.tokens} * heads * (keys + 1);
        rows.push_back(std::move(row));
    }
    return rows;
}

// The causal row of one token over exactly the keys that token i of `row` sees, in order.
inline Row compacted(const Row& row, int heads, int i, std::int64_t columns = kKey) {
    Row alone;
    alone.tokens = alone.tail = 1;
    alone.words = {1};
    const std::int64_t width = heads * columns;
    alone.query.assign(row.query.begin() + i * width, row.query.begin() + (i + 1) * width);
    for (int c = 0; c < row.keys; ++c) {
        bool seen = row.mask == MaskKind::full;
        if (row.mask == MaskKind::causal) seen = c < row.keys - (row.tokens - 1) + i;
        if (row.mask == MaskKind::dense)
            seen = row.dense[static_cast<std::size_t>(i * row.keys + c)] != 0;
        if (row.mask == MaskKind::tree) {
            const int bit = c - (row.keys - row.tail);
            seen = bit < 0 || ((row.words[static_cast<std::size_t>(i)] >> bit) & 1) != 0;
        }
        if (!seen) continue;
        alone.key.insert(alone.key.end(), row.key.begin() + c * kKey,
                         row.key.begin() + (c + 1) * kKey);
        ++alone.keys;
    }
    alone.global_keys = alone.keys;
    return alone;
}

constexpr DType query_dtype(KvFormat format) {
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

inline std::vector<std::byte> narrowed(const std::vector<float>& values, DType dtype) {
    const std::size_t size = bytes_of(dtype);
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto put = [&](auto stored) { std::memcpy(bytes.data() + i * size, &stored, size); };
        if (dtype == DType::f32) put(values[i]);
        if (dtype == DType::bf16) put(to_bf16(values[i]));
        if (dtype == DType::f16) put(to_fp16(values[i]));
        if (dtype == DType::e4m3) put(to_e4m3(values[i]));
    }
    return bytes;
}

struct Layout {
    int page_tokens = 64;
    std::uint64_t seed = 1;      // of the shuffled pages
    std::uint32_t poison = ~0u;  // fills every byte that nobody may read
    int padding_tokens = 3;
    int spare_entries = 2;  // block-table entries past the last page
    int dcp_world = 1;
    int dcp_rank = 0;
};

// Owns every array of a call.
class Batch {
  public:
    Batch(KvFormat format, int heads, const std::vector<Row>& rows, const Layout& layout,
          std::int64_t columns = kKey)
        : layout_(layout), heads_(heads), columns_(columns) {
        kv_.format = format;
        kv_.page_tokens = layout.page_tokens;
        kv_.page_stride = page_stride_bytes(format, layout.page_tokens);
        kv_.scale = 0.02f;
        lay_pages(rows);
        lay_rows(rows);
        view_.rows = static_cast<std::int32_t>(rows.size());
        view_.token_end = q_indptr_.back() + layout.padding_tokens;
        view_.q_indptr = q_indptr_.data();
        view_.kv_len = kv_len_.data();
        view_.block_table = block_table_.data();
        view_.mask = masks_.data();
        view_.tail_len = tail_len_.data();
        view_.words = words_.data();
        view_.custom_mask = dense_.data();
        view_.custom_mask_offset = mask_offset_.data();
        view_.custom_mask_len = static_cast<std::int64_t>(dense_.size());
        view_.dcp_world = layout.dcp_world;
        view_.dcp_rank = layout.dcp_rank;
        view_.global_kv_len = layout.dcp_world > 1 ? global_len_.data() : nullptr;
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    RaggedRows& view() { return view_; }
    KvPages& kv() { return kv_; }
    std::byte* query() { return query_.data(); }
    int heads() const { return heads_; }
    std::int64_t first_token(std::size_t row) const { return q_indptr_[row]; }
    std::int64_t tokens() const { return view_.token_end; }
    std::vector<std::int32_t>& block_table() { return block_table_; }

  private:
    // Pages of all rows dealt from a shuffled pool in which every third page belongs to nobody.
    void lay_pages(const std::vector<Row>& rows) {
        std::int64_t needed = 0;
        std::int64_t longest = 0;
        for (const Row& row : rows) {
            const std::int64_t pages = (row.keys + layout_.page_tokens - 1) / layout_.page_tokens;
            needed += pages;
            longest = std::max(longest, pages);
        }
        kv_.page_count = needed + needed / 3 + 2;
        pages_.resize(static_cast<std::size_t>(kv_.page_count * kv_.page_stride));
        for (std::size_t i = 0; i + 4 <= pages_.size(); i += 4)
            std::memcpy(pages_.data() + i, &layout_.poison, 4);
        kv_.data = pages_.data();
        std::vector<std::int32_t> free(static_cast<std::size_t>(kv_.page_count));
        std::iota(free.begin(), free.end(), 0);
        Random random(layout_.seed);
        for (std::size_t i = free.size(); i > 1; --i)
            std::swap(free[i - 1], free[random.bits() % i]);
        view_.block_stride = longest + layout_.spare_entries;
        for (const Row& row : rows) lay_row_keys(row, free, random);
    }

    void lay_row_keys(const Row& row, std::vector<std::int32_t>& free, Random& random) {
        const std::size_t begin = block_table_.size();
        for (std::int64_t entry = 0; entry < view_.block_stride; ++entry) {
            if (entry * layout_.page_tokens < row.keys) {
                block_table_.push_back(free.back());
                free.pop_back();
            } else {  // anything
                block_table_.push_back(
                    random.chance(0.5) ? -1 : static_cast<std::int32_t>(random.bits()));
            }
        }
        for (int c = 0; c < row.keys; ++c) {
            const std::int64_t slot =
                pool_slot(block_table_.data() + begin, layout_.page_tokens, c);
            const float* key = row.key.data() + c * kKey;
            write_slot(kv_, slot, key, key + kLatent);
        }
    }

    void lay_rows(const std::vector<Row>& rows) {
        std::vector<float> query;
        q_indptr_.push_back(0);
        for (const Row& row : rows) {
            q_indptr_.push_back(q_indptr_.back() + row.tokens);
            kv_len_.push_back(row.keys);
            tail_len_.push_back(row.tail);
            masks_.push_back(row.mask);
            global_len_.push_back(static_cast<std::int32_t>(row.global_keys));
            words_.insert(words_.end(), row.words.begin(), row.words.end());
            mask_offset_.push_back(row.malformed ? row.mask_offset
                                                 : static_cast<std::int64_t>(dense_.size()));
            dense_.insert(dense_.end(), row.dense.begin(), row.dense.end());
            query.insert(query.end(), row.query.begin(), row.query.end());
            view_.max_q_len = std::max(view_.max_q_len, row.tokens);
            view_.max_kv_len = std::max(view_.max_kv_len, row.keys);
        }
        words_.resize(words_.size() + static_cast<std::size_t>(layout_.padding_tokens), ~0ull);
        query.resize(
            query.size() + static_cast<std::size_t>(layout_.padding_tokens * heads_ * columns_),
            std::bit_cast<float>(layout_.poison));
        query_ = narrowed(query, query_dtype(kv_.format));
    }

    Layout layout_;
    int heads_;
    std::int64_t columns_;
    KvPages kv_;
    RaggedRows view_;
    std::vector<std::byte> pages_;
    std::vector<std::byte> query_;
    std::vector<std::int32_t> q_indptr_, kv_len_, tail_len_, global_len_, block_table_;
    std::vector<MaskKind> masks_;
    std::vector<std::uint64_t> words_;
    std::vector<std::uint8_t> dense_;
    std::vector<std::int64_t> mask_offset_;
};

}  // namespace espalier::mla
