// SPDX-License-Identifier: Apache-2.0
// Row-invariant matrix products on Hopper: the bits of one token's result depend on its row of x
// and on the weight alone, not on the other tokens, its place among them, the kernel that serves
// their number, or the GPU's number of multiprocessors. docs/kernels/products.md has the rule and
// the kernels.
//
// Everything is queued on the stream: no allocation, no host read of device memory, so a call can
// be captured in a graph. x has the weight's input dtype (f32 for f32 and f16 weights, bf16
// otherwise), y is f32, bf16 or f16. Every launch is declared to the stream's order, which knows
// what it may do before the one in front of it has ended (order.hpp).
#pragma once

#include <cstdint>

#include "base/device.hpp"
#include "base/matrix.hpp"
#include "linalg/cuda/queue.hpp"
#include "linalg/store.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg::cuda {

// Weights as WeightLayout::fragments (linalg/cuda/fragments.hpp) in the device's memory: f32, f16,
// bf16; e4m3 with a scale per 128 inputs; int8 and int4 with scales of 32, 64 or multiples of 128
// inputs of an output; NVFP4. Others are refused by name, and so are NaN codes and scales that are
// no finite numbers. A source's weights may lie in host or device memory, its scales in host
// memory.
Expected<Weight> pack(Device& device, WeightStack stack);

// For gated products: matrices that join gate and up. As WeightLayout::gated_fragments where x is
// bf16 and half the outputs a multiple of 8, otherwise as pack().
Expected<Weight> pack_gated(Device& device, WeightStack stack);

// Memory of the device that a product may write until it has ended, 16-byte aligned. With enough
// of it (scratch_bytes) products of many tokens arrange x there first and are faster; their bits
// are the same.
struct Scratch {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
};
// Scratch of a product of `rows` rows of y.
std::size_t scratch_bytes(std::int64_t rows, std::int64_t k);

// y [T, n] from x [T, k]; w is one matrix.
void product(const Queue& queue, const Matrix& x, const WeightView& w, const Matrix& y, Store store,
             const Wishes& wishes = {}, Scratch scratch = {});

// Another product of the same x; y without data: there is none.
struct Second {
    WeightView w{};
    Matrix y{};  // f32
};
// Destination of outputs that are queries, heads of `width` columns and then 64 to be rotated
// (cos_sin: [T, 64] f32, pairs): the first go to the same columns of act, the others to columns
// [h·rope_step, +64) of rope, both bf16; y is not written. Rows beyond those of rope have all
// columns in act.
struct Queries {
    std::int64_t width = 0;
    Matrix cos_sin{};
    Matrix act{};
    Matrix rope{};
    std::int64_t rope_step = 0;
};
// Both products in one launch, or of many tokens x arranged for both, with the bits that they have
// one by one. False: nothing was queued, because no kernel serves them together: without arranged x
// tiles of 128 tokens no second product, tensor cores' tiles no queries, and none queries of which
// some are not apart.
bool joint_product(const Queue& queue, const Matrix& x, const WeightView& w, const Matrix& y,
                   const Second& second, const Queries* queries, Scratch scratch = {},
                   const Ranges& holds_back = {});

// For every matrix s of the stack: y columns [s·y_step, +n) from x columns [s·x_step, +k).
void stacked_product(const Queue& queue, const Matrix& x, std::int64_t x_step, const WeightView& w,
                     const Matrix& y, std::int64_t y_step, const Wishes& wishes = {});

// Rows indptr[e] … indptr[e + 1] - 1 of y use matrix e; row r reads x[source_token[r]], or x[r] if
// source_token is null. Both arrays are the device's; y.rows is how many rows there may be, and
// rows from indptr[count] on are left alone.
void expert_product(const Queue& queue, const Matrix& x, const std::int32_t* source_token,
                    const std::int32_t* indptr, const WeightView& w, const Matrix& y,
                    const Wishes& wishes = {}, Scratch scratch = {});

// A product of one matrix, gated where its weights are gated_fragments.
struct Dense {
    Matrix x{};
    WeightView w{};
    Matrix y{};
};
// An expert product and a dense one in one launch, with the bits that they have one by one; gated
// both or neither. False: nothing was queued, because no kernel serves them together: formats or
// segments differ, or there are more tokens than eight.
bool joint_expert_product(const Queue& queue, const Dense& lead, const Matrix& x,
                          const std::int32_t* source_token, const std::int32_t* indptr,
                          const WeightView& w, const Matrix& y);

// Gated product and expert_product, over gated_fragments: y [·, n / 2] = silu(gate) · up, with the
// bits of these operations one after another (base/portable_math.hpp) over f32 sums.
void gated_product(const Queue& queue, const Matrix& x, const WeightView& w, const Matrix& y,
                   const Wishes& wishes = {}, Scratch scratch = {});
void gated_expert_product(const Queue& queue, const Matrix& x, const std::int32_t* source_token,
                          const std::int32_t* indptr, const WeightView& w, const Matrix& y,
                          const Wishes& wishes = {}, Scratch scratch = {});

// gated_product and then product of many tokens, with the bits that they have one by one: what is
// between them goes straight to where the second reads it, and `gated` says its shape alone. False:
// nothing was queued, because x or `gated` would not be arranged.
struct FeedForwardScratch {
    Scratch x{};
    Scratch gated{};
};
bool feed_forward(const Queue& queue, const Matrix& x, const WeightView& gate_up,
                  const WeightView& down, const Matrix& gated, const Matrix& y,
                  const FeedForwardScratch& scratch);
// The same of gated_expert_product and expert_product over the rows that it gives.
bool expert_feed_forward(const Queue& queue, const Matrix& x, const std::int32_t* source_token,
                         const std::int32_t* indptr, const WeightView& gate_up,
                         const WeightView& down, const Matrix& gated, const Matrix& y,
                         const FeedForwardScratch& scratch);

}  // namespace espalier::linalg::cuda
