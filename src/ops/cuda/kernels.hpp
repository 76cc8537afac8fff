// SPDX-License-Identifier: Apache-2.0
// What src/ops/cuda launches; each function is an operation (ops/operations.hpp), its
// arguments checked by the caller. All are asynchronous and take no memory but what they are given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/device.hpp"
#include "base/matrix.hpp"
#include "base/stream_order.hpp"
#include "ops/layer_program.hpp"

namespace espalier::ops::cuda {

void embed(Stream stream, const std::int32_t* tokens, const EmbeddingTable& table,
           const Matrix& out);
void rms_norm(Stream stream, const Matrix& x, const RowNorm& norm);
// residual += partial, which is a product's one segment, then the norm.
void reduce_add_norm(Stream stream, const Matrix& partial, const Matrix& residual,
                     const RowNorm& norm);
// residual += the experts of one owner and the shared one, then the norm. grant.ahead: the plan may
// be read before the wait.
void combine_add_norm(Stream stream, const Matrix& expert_out, std::int32_t top_k,
                      const ExpertPlan& plan, const Matrix& shared, const Matrix& residual,
                      const RowNorm& norm, const LaunchGrant& grant);
void split_queries(Stream stream, const Matrix& q, std::int32_t heads, std::int64_t width,
                   const Matrix& cos_sin, const Matrix& q_act, const Matrix& rope_to,
                   std::int64_t rope_step);
void rope_angles(Stream stream, const std::int32_t* position, std::int64_t tokens,
                 const RopeRule& rule, const Matrix& cos_sin);
void rope(Stream stream, const Matrix& from, std::int64_t from_step, std::int32_t heads,
          const Matrix& cos_sin, const Matrix& to, std::int64_t to_step);
void convert(Stream stream, const Matrix& from, std::int64_t from_step, std::int32_t heads,
             std::int64_t width, const Matrix& to, std::int64_t to_step);
void swiglu(Stream stream, const Matrix& gate_up, const Matrix& out);
void add_terms(Stream stream, const Terms& terms, const Matrix& residual);
void gather_rows(Stream stream, const Matrix& x, const std::int32_t* index, const Matrix& out);
void copy_rows(Stream stream, const Matrix& x, const RowPairs& pairs, const Matrix& out);

// arrived: the kernel's blocks count there; 0 before and after, and no other kernel may count there
// at the same time.
void route(Stream stream, const Matrix& logits, const float* bias, const RouterRule& rule,
           const std::int32_t* row_of, const ExpertPlan& plan, std::uint32_t* arrived);

// reduce_add_norm, the router's product and route in one kernel. False: nothing was queued, because
// there are too many tokens or their rows cannot be read 16 bytes at a time. router.w: f32.
// arrived: as above.
bool norm_route(Stream stream, const Matrix& partial, const Matrix& residual, const RowNorm& norm,
                const RouterCall& router, std::uint32_t* arrived);

// The router's product of normed rows x and route, of more tokens than norm_route has room for, in
// one kernel. False and the rest: as there.
bool router_route(Stream stream, const Matrix& x, const RouterCall& router, std::uint32_t* arrived);

// Nodes that are drawn at a time: scratch is for these. (An H200 has 132 multiprocessors, a block
// takes one.)
inline constexpr std::int64_t kNodesAtOnce = 256;
// Floats from one node's scratch to the next.
constexpr std::int64_t row_stride(std::int64_t vocabulary) { return (vocabulary + 15) / 16 * 16; }

// spare: [min(nodes, kNodesAtOnce), row_stride], for adjusted logits.
void sample_nodes(Stream stream, const Matrix& logits, const SamplingBatch& batch, float* spare);
// spare as above, of the draft's vocabulary.
void draft_children(Stream stream, const Matrix& logits, const SamplingBatch& batch,
                    const DraftVocabulary& vocabulary, const DraftRule& rule, DraftChild* children,
                    float* spare);

void grow_trees(Stream stream, const DraftGrowth& growth, const FoundChildren& found);
void lay_frontiers(Stream stream, const DraftGrowth& growth, const FrontierBatch& batch,
                   const FrontierDraws& draws);

}  // namespace espalier::ops::cuda
