// SPDX-License-Identifier: Apache-2.0
// One call of any of the three products as plain data, and the kernels that serve it.
#pragma once

#include <cstdint>
#include <variant>

#include "base/device.hpp"
#include "base/device_facts.hpp"
#include "base/numeric.hpp"
#include "base/stream_order.hpp"
#include "base/weight_format.hpp"

namespace espalier::linalg::cuda {

// Another product of the same x: outputs behind those of the first.
struct SecondProduct {
    const std::byte* weights = nullptr;
    const float* scales = nullptr;
    float* y = nullptr;
    std::int64_t y_stride = 0;
    std::int32_t n = 0;  // 0: there is none
};

// Destination of a product whose outputs are queries, `width` columns and then 64 to rotate: the
// first go to the same columns of `act`, the others to columns [h·rope_step, +64) of `rope`, both
// bf16; of rows from `apart` on to the same columns of `act`, too.
struct QueryStore {
    const float* cos_sin = nullptr;  // null: outputs are no queries
    std::uint16_t* act = nullptr;
    std::uint16_t* rope = nullptr;
    std::int64_t cos_sin_stride = 0;
    std::int64_t act_stride = 0;
    std::int64_t rope_stride = 0;
    std::int64_t rope_step = 0;
    std::int32_t width = 0;
    std::int32_t apart = 0;
};

// A dense product that an expert product of the same format leads with: its weights need no
// routing.
struct LeadingProduct {
    const std::byte* weights = nullptr;  // null: there is none
    const float* scales = nullptr;
    const std::byte* x = nullptr;
    std::byte* y = nullptr;  // of gated products bf16, of others f32
    std::int64_t x_stride = 0;
    std::int64_t y_stride = 0;
    std::int32_t n = 0;
    std::int32_t k = 0;
    std::int32_t rows = 0;
};

// Format that a kernel reads of a weight besides its shape: one launch serves one format.
struct Format {
    WeightCode code = WeightCode::f32;
    std::int32_t half_bytes = 0;     // half a chunk of 16 outputs, its scales included
    std::int32_t scale_outputs = 2;  // scales of a chunk that lie apart: 2 or 16
    bool two_groups = false;   // integer codes: half a chunk has scales of two groups of inputs
    bool wide_scales = false;  // in f32, not bf16

    bool operator==(const Format&) const = default;
};

// A product by itself. A group is a matrix of the stack with its tokens: the only one, a head, an
// expert.
struct Product : Format {
    const std::byte* weights = nullptr;
    const float* scales = nullptr;
    std::int64_t matrix_bytes = 0;   // from one group's weights to the next one's
    std::int64_t matrix_scales = 0;  // floats
    const std::byte* x = nullptr;
    std::byte* y = nullptr;
    std::int64_t x_stride = 0;  // elements
    std::int64_t x_step = 0;    // from one group's columns to the next one's
    std::int64_t y_stride = 0;
    std::int64_t y_step = 0;
    const std::int32_t* source = nullptr;  // row of y → row of x
    const std::int32_t* indptr = nullptr;  // experts: a group's rows; null: every group has all
    std::int32_t n = 0;
    std::int32_t k = 0;
    std::int32_t groups = 1;
    std::int32_t rows = 0;    // of y
    std::int32_t x_rows = 0;  // upper bound of tokens in one group
    DType y_type = DType::f32;
    bool accumulate = false;
    bool gated = false;     // y has n / 2 columns: silu(gate) · up
    bool vector_x = false;  // rows of x can be read 16 bytes at a time
};

inline bool same_format(const Format& a, const Format& b) { return a == b; }

// The ways in which a product's launch is joined with others. Beside it: a second product, or the
// store of queries, or both.
struct Alone {};
struct Beside {
    SecondProduct second{};  // not in tiles of 128 tokens
    QueryStore query{};      // few tokens, all of them apart, or arranged x
};
using Joining = std::variant<Alone, Beside, LeadingProduct>;  // the last of few tokens

// A product and the way it is joined, as kernels read it.
struct Problem : Product {
    Problem() = default;
    explicit Problem(const Product& product, const Joining& joining = Alone()) : Product(product) {
        if (const auto* beside = std::get_if<Beside>(&joining)) {
            second = beside->second;
            query = beside->query;
        } else if (const auto* leading = std::get_if<LeadingProduct>(&joining)) {
            lead = *leading;
        }
    }

    SecondProduct second{};
    QueryStore query{};
    LeadingProduct lead{};
};

// Bytes of a tile in the list that kernels make of experts' tokens (work.cuh).
inline constexpr int kTokenTileBytes = 12;

// Tiles of `tokens` tokens that the rows of y can make at most.
inline std::int64_t most_token_tiles(const Product& p, std::int64_t tokens) {
    const std::int64_t rows = p.rows;
    const std::int64_t full = (rows + tokens - 1) / tokens;
    if (p.indptr == nullptr) return full * p.groups;
    return rows < p.groups + rows / tokens ? rows : p.groups + rows / tokens;
}

// bf16 and codes: bound by reading weights; by the tensor cores (vector_x alone). grant: what the
// order has answered (order.hpp).
void few_tokens(Stream stream, const Problem& p, const LaunchGrant& grant,
                const DeviceFacts& facts);
struct ManyPlan;
void many_tokens(Stream stream, const Problem& p, const LaunchGrant& grant, const ManyPlan& plan,
                 const DeviceFacts& facts);
// f32 and f16.
void plain(Stream stream, const Problem& p, const LaunchGrant& grant);

}  // namespace espalier::linalg::cuda
