// SPDX-License-Identifier: Apache-2.0
// Small attention problems for tests of one backend's plumbing (the C API, CUDA's entries): causal
// rows over sequences, laid into shuffled pages with poison wherever nothing may be read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/cpu_device.hpp"
#include "base/element.hpp"
#include "mla/contract.hpp"
#include "mla/storage.hpp"

namespace espalier::mla::simple {

inline constexpr float kScale = 0.0721687836f;  // 1 / √192

using Random = std::mt19937_64;

inline std::vector<float> normal(Random& random, std::int64_t count, float size = 1.0f) {
    std::normal_distribution<float> draw;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = draw(random) * size;
    return values;
}

inline std::vector<std::byte> narrowed(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
        store_element(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
    return bytes;
}

inline std::vector<float> widened(const std::vector<std::byte>& bytes, DType dtype) {
    std::vector<float> values(bytes.size() / bytes_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = load_element(bytes.data(), dtype, static_cast<std::int64_t>(i));
    return values;
}

constexpr DType query_dtype(KvFormat format) {
    if (format == KvFormat::f32) return DType::f32;
    return format == KvFormat::fp16 ? DType::f16 : DType::bf16;
}

// Keys and queries of every position of one sequence.
struct Sequence {
    int heads;
    std::int64_t columns;      // 576 absorbed, 192 decompressed
    std::vector<float> key;    // [length, 576]
    std::vector<float> query;  // [length, heads, columns]

    Sequence(Random& random, int length, int heads_, std::int64_t columns_)
        : heads(heads_),
          columns(columns_),
          key(normal(random, length * kKey)),
          query(normal(random, length * heads * columns)) {}
};

// Positions first … first + tokens - 1 of a sequence over its first `keys` slots.
struct Row {
    const Sequence* sequence;
    int first;
    int tokens;
    int keys;
};

inline Row chunk(const Sequence& sequence, int first, int tokens) {
    return {&sequence, first, tokens, first + tokens};
}

struct Layout {
    int page_tokens = 64;
    std::uint32_t poison = 0xffffffffu;
    int padding_tokens = 3;
};

// The arrays of a call over causal rows, in host memory.
struct Arrays {
    KvPages kv;
    int heads = 0;
    std::int64_t columns = 0;
    DType q_dtype = DType::bf16;
    std::vector<std::byte> pages;
    std::vector<std::byte> query;
    std::vector<std::int32_t> q_indptr{0};
    std::vector<std::int32_t> kv_len;
    std::vector<std::int32_t> block_table;
    std::vector<MaskKind> mask;
    RaggedRows rows;  // views of the above

    Arrays(KvFormat format, DType query_type, const std::vector<Row>& list, const Layout& layout)
        : heads(list.at(0).sequence->heads),
          columns(list.at(0).sequence->columns),
          q_dtype(query_type) {
        kv.format = format;
        kv.page_tokens = layout.page_tokens;
        kv.page_stride = page_stride_bytes(format, layout.page_tokens);
        kv.scale = 0.02f;
        lay_pages(list, layout);
        std::vector<float> queries;
        for (const Row& row : list) {
            q_indptr.push_back(q_indptr.back() + row.tokens);
            kv_len.push_back(row.keys);
            mask.push_back(MaskKind::causal);
            const auto from = row.sequence->query.begin() + row.first * heads * columns;
            queries.insert(queries.end(), from, from + row.tokens * heads * columns);
            rows.max_q_len = std::max(rows.max_q_len, row.tokens);
            rows.max_kv_len = std::max(rows.max_kv_len, row.keys);
        }
        queries.resize(
            queries.size() + static_cast<std::size_t>(layout.padding_tokens * heads * columns),
            std::bit_cast<float>(layout.poison));
        query = narrowed(queries, q_dtype);
        rows.rows = static_cast<std::int32_t>(list.size());
        rows.token_end = q_indptr.back() + layout.padding_tokens;
        rows.q_indptr = q_indptr.data();
        rows.kv_len = kv_len.data();
        rows.block_table = block_table.data();
        rows.mask = mask.data();
    }
    Arrays(const Arrays&) = delete;
    Arrays& operator=(const Arrays&) = delete;

  private:
    // Pages are dealt from the end of a pool in which every other one belongs to nobody.
    void lay_pages(const std::vector<Row>& list, const Layout& layout) {
        std::int64_t needed = 0;
        for (const Row& row : list) {
            const std::int64_t used = (row.keys + layout.page_tokens - 1) / layout.page_tokens;
            needed += used;
            rows.block_stride = std::max(rows.block_stride, used + 1);
        }
        kv.page_count = 2 * needed + 1;
        pages.resize(static_cast<std::size_t>(kv.page_count * kv.page_stride));
        for (std::size_t i = 0; i + 4 <= pages.size(); i += 4)
            std::memcpy(pages.data() + i, &layout.poison, 4);
        kv.data = pages.data();
        auto next = static_cast<std::int32_t>(kv.page_count);
        for (const Row& row : list) {
            const std::size_t begin = block_table.size();
            for (std::int64_t entry = 0; entry < rows.block_stride; ++entry)
                block_table.push_back(entry* layout.page_tokens < row.keys ? next -= 2 : -1234567);
            for (int c = 0; c < row.keys; ++c) {
                const float* key = row.sequence->key.data() + c * kKey;
                write_slot(kv, pool_slot(block_table.data() + begin, layout.page_tokens, c), key,
                           key + kLatent);
            }
        }
    }
};

inline Capacities capacities(const RaggedRows& rows, int heads, int workers = 1) {
    return {.heads = heads,
            .rows = rows.rows,
            .tokens = rows.token_end,
            .max_q_len = rows.max_q_len,
            .max_kv_len = rows.max_kv_len,
            .workers = workers,
            .dense = rows.custom_mask != nullptr};
}

inline Arena host_arena(std::size_t bytes) {
    const std::size_t rounded = (bytes + 127) / 64 * 64;
    return Arena(Buffer(std::aligned_alloc(64, rounded), rounded,
                        [](void*, void* data, std::size_t) { std::free(data); }));
}

struct Outputs {
    std::int64_t columns = 0;
    std::vector<float> out;  // [packed (token, head), columns]
    std::vector<float> lse;  // [packed]
};

// Bits of `count` packed (token, head) rows.
inline testing::AssertionResult same_bits(const Outputs& a, std::int64_t a_first, const Outputs& b,
                                          std::int64_t b_first, std::int64_t count) {
    for (std::int64_t packed = 0; packed < count; ++packed) {
        const auto at = [](const std::vector<float>& values, std::int64_t index) {
            return std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(index)]);
        };
        if (at(a.lse, a_first + packed) != at(b.lse, b_first + packed))
            return testing::AssertionFailure() << "lse of packed row " << packed << " differs";
        for (std::int64_t c = 0; c < a.columns; ++c)
            if (at(a.out, (a_first + packed) * a.columns + c) !=
                at(b.out, (b_first + packed) * b.columns + c))
                return testing::AssertionFailure()
                       << "packed row " << packed << ", column " << c << " differs";
    }
    return testing::AssertionSuccess();
}

inline testing::AssertionResult all_same_bits(const Outputs& a, const Outputs& b) {
    if (a.lse.size() != b.lse.size()) return testing::AssertionFailure() << "sizes differ";
    return same_bits(a, 0, b, 0, static_cast<std::int64_t>(a.lse.size()));
}

// Relative L2 per packed row, and lse within 1e-3 + 2^-18 · max|score|; exact where the oracle sees
// nothing.
inline testing::AssertionResult close_to(const Outputs& result, const Outputs& oracle, double bound,
                                         double largest_score) {
    for (std::size_t packed = 0; packed < oracle.lse.size(); ++packed) {
        double error = 0.0;
        double norm = 0.0;
        for (std::size_t c = 0; c < static_cast<std::size_t>(oracle.columns); ++c) {
            const std::size_t at = packed * static_cast<std::size_t>(oracle.columns) + c;
            const auto want = static_cast<double>(oracle.out[at]);
            const double difference = static_cast<double>(result.out[at]) - want;
            error += difference * difference;
            norm += want * want;
        }
        if (!(error <= bound * bound * norm))
            return testing::AssertionFailure() << "packed row " << packed << ": relative L2 "
                                               << std::sqrt(error / norm) << " > " << bound;
        const auto want = static_cast<double>(oracle.lse[packed]);
        const auto got = static_cast<double>(result.lse[packed]);
        if (want != got && !(std::fabs(got - want) <= 1e-3 + 0x1p-18 * largest_score))
            return testing::AssertionFailure()
                   << "packed row " << packed << ": lse " << got << ", oracle " << want;
    }
    return testing::AssertionSuccess();
}

inline AbsorbedCall absorbed_call(const Arrays& arrays) {
    AbsorbedCall call;
    call.rows = arrays.rows;
    call.heads = arrays.heads;
    call.q = arrays.query.data();
    call.q_dtype = arrays.q_dtype;
    call.kv = arrays.kv;
    call.scale = kScale;
    call.out_dtype = DType::f32;
    return call;
}

// Runs a call on the host with f32 outputs of its own. run: Expected<void>(OpContext&).
template <typename Call, typename Run>
Outputs on_host(const Kernels& kernels, Call call, std::int64_t columns, Run run) {
    Outputs result{columns, {}, {}};
    const std::int64_t packed = call.rows.token_end * call.heads;
    result.out.assign(static_cast<std::size_t>(packed * columns), -5.0f);
    result.lse.assign(static_cast<std::size_t>(packed), -5.0f);
    call.out = reinterpret_cast<std::byte*>(result.out.data());
    call.out_dtype = DType::f32;
    call.lse = result.lse.data();
    CpuDevice device(1);
    Arena arena = host_arena(kernels.scratch_bytes(capacities(call.rows, call.heads)));
    OpContext context{device, arena};
    const Expected<void> done = run(context, call);
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    return result;
}

inline Outputs absorbed_on_host(const Kernels& kernels, const AbsorbedCall& call) {
    return on_host(kernels, call, kLatent, [&](OpContext& context, const AbsorbedCall& full) {
        return kernels.absorbed(context, full);
    });
}

inline Outputs decompressed_on_host(const Kernels& kernels, const DecompressedCall& call) {
    return on_host(kernels, call, call.head_dims().value,
                   [&](OpContext& context, const DecompressedCall& full) {
                       return kernels.decompressed(context, full);
                   });
}

}  // namespace espalier::mla::simple
