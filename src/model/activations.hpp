// SPDX-License-Identifier: Apache-2.0
// The activations of one forward pass, planned once for the largest batch. Memory that a smaller
// batch does not touch is never backed by the system.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "base/matrix.hpp"
#include "base/op_context.hpp"
#include "checkpoint/model_config.hpp"
#include "mla/types.hpp"
#include "model/shard_plan.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

// Heads (H) and widths are those of this rank. Matrices have the rows of the largest batch (T
// tokens, G gathered); a step works on slices of them. "act" is bf16 for bf16 and FP8 weights, f32
// otherwise.
struct Activations {
    Matrix residual;  // [T, hidden] f32
    // f32, of o or a dense down, the terms about to be added to it: [T, hidden], on ranks [segments
    // here · T, hidden]
    Matrix sums;
    Matrix normed;  // [T, hidden] act
    // Input of attention's products: the layer's normed input, in place of `normed` unless it is
    // wider.
    Matrix attention_input;  // [T, input width] act
    Matrix normed_exact;     // [T, hidden] f32, for the router, and for an indexer's weights
    Matrix cos_sin;          // [T, 64] f32
    Matrix q_a;              // [T, q_lora] f32
    Matrix kv_a;             // [T, 576] f32
    Matrix q_low;            // [T, q_lora] act
    Matrix q;                // [T, H·(nope + 64)] f32
    Matrix q_act;            // [T, H·(nope + 64)] act: nope and, decompressed, rotated rope
    Matrix q_absorbed;       // [T, H·576] act
    // Of an indexer; empty: there is none.
    Matrix index_k;         // [T, width] f32
    Matrix index_q;         // [T, heads·width] f32
    Matrix index_q_act;     // [T, heads·width] act
    Matrix index_weights;   // [T, heads] f32
    mla::KeyLists lists{};  // [T, top_k]: keys that the last indexer chose
    Matrix latent;          // [T, 512] f32
    Matrix key_rope;        // [T, 64] f32
    Matrix out_latent;      // [T, H·512] act
    Matrix out;             // [T, H·value] act
    Matrix all_out;         // [T, H·value of all ranks] act, where o reads others' heads
    Matrix gate_up;         // [T, 2·width] f32: dense layers and shared experts
    Matrix gated;           // [T, width] act
    Matrix shared_out;      // [T, hidden] f32, on ranks [segments here · T, hidden]
    Matrix router_logits;   // [T, experts] f32
    ops::ExpertPlan plan{};
    Matrix pair_gate_up;                // [T·top_k, 2·I] f32
    Matrix pair_gated;                  // [T·top_k, I] act
    Matrix pair_out;                    // [T·top_k, hidden] f32
    Matrix gathered;                    // [G, hidden] f32
    Matrix gathered_act;                // [G, hidden] act
    Matrix logits;                      // [G, vocabulary] f32
    Matrix logits_here;                 // [G, rows of the head here] f32, on ranks
    std::uint8_t* nonfinite = nullptr;  // [T]: 1 where any layer's cache entry was flushed
    // The step's plan of absorbed attention, which its layers share (mla::AbsorbedCall); null: each
    // makes its own, or none is needed. Not taken here.
    std::byte* attention_plan = nullptr;
    // [T] each: the slots that a commit moves
    std::int64_t* move_source = nullptr;
    std::int64_t* move_destination = nullptr;

    struct Sizes {
        std::int64_t tokens = 0;           // T
        std::int64_t gather = 0;           // G
        std::int64_t attention_input = 0;  // width; 0: hidden
        Shard shard = {};                  // whose weights they are for
    };
    // Takes everything from the arena; plan_bytes() says how much that is.
    static Activations take(Arena& arena, const checkpoint::ModelConfig& config, DType act,
                            const Sizes& most);
    static std::size_t plan_bytes(const checkpoint::ModelConfig& config, DType act,
                                  const Sizes& most);
};

}  // namespace espalier::model
