// SPDX-License-Identifier: Apache-2.0
// Runs a draft model's layer over batches: the KV half alone, or all of it up to the logits. Owns
// the activations; the cache is the caller's. Used by ModelDrafter.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "base/op_context.hpp"
#include "batch/batch_view.hpp"
#include "batch/captured_steps.hpp"
#include "cache/kv_storage.hpp"
#include "draft/network.hpp"
#include "mla/contract.hpp"
#include "model/activations.hpp"
#include "ops/ops.hpp"

namespace espalier::draft {

// Device, backend and cache that a draft model runs on; borrowed.
struct Machine {
    Device& device;
    const ops::Backend& backend;
    const mla::Kernels& kernels;
    batch::CaptureOptions capture{};  // of each draft model
    // Ranks that have the other parts of the target, and of its own layers; null: it is whole.
    parallel::Ranks* ranks = nullptr;
};

struct PassLimits {
    std::int64_t tokens = 0;  // of one KV half
    std::int64_t nodes = 0;   // of one level, all requests together
    std::int32_t rows = 0;    // requests
    std::int64_t max_kv_len = 0;
    // Partial results of attention in a level (mla::RaggedRows); 0: as many as it may have. 512
    // nodes over 163,840 slots with 128 heads would take 22 GB.
    std::int64_t max_splits = 0;
};

// Tokens by arrays of the device; all a KV half needs to know.
struct TokenView {
    std::int64_t count = 0;
    const std::int32_t* tokens = nullptr;
    const std::int32_t* position = nullptr;
    const std::int64_t* slot = nullptr;  // of the pool; -1: not written
};

// Device memory of a draft model's passes beside weights and cache: activations and
// workspace, and about as much as its drafter keeps besides (taps, states, draws).
std::size_t draft_memory_bytes(const NetworkShape& shape, const ops::Backend& backend,
                               const mla::Kernels& kernels, int workers, const PassLimits& limits);

class DraftModel {
  public:
    static Expected<std::unique_ptr<DraftModel>> create(std::unique_ptr<Network> network,
                                                        const Machine& machine,
                                                        const PassLimits& limits);

    const Network& network() const { return *network_; }
    OpContext& context() { return context_; }
    const ops::Backend& backend() const { return backend_; }

    // taps [n, taps] → states [n, state]: in `room`, or the taps themselves.
    Matrix combine(const Matrix& taps, const Matrix& room);
    // The KV of the tokens, into their slots; before [count, state].
    Expected<void> write_kv(const TokenView& tokens, const Matrix& before,
                            const cache::LayerPages& kv);
    // The rest of the layer for the batch, whose tokens are the first of the last write_kv; after
    // [tokens, state] gets their states. Logits [tokens, vocabulary], good until the next call.
    Expected<Matrix> logits(const batch::BatchView& batch, const cache::LayerPages& kv,
                            const Matrix& after);
    // Both for all tokens of the batch, with fewer operations; before [tokens, state].
    Expected<Matrix> write_kv_and_logits(const batch::BatchView& batch, const Matrix& before,
                                         const cache::LayerPages& kv, const Matrix& after);

    // For tests: 0xFF in everything that earlier passes may have left and none may read.
    Expected<void> poison();

  private:
    DraftModel(std::unique_ptr<Network> network, const Machine& machine, const PassLimits& limits,
               Buffer activations, Buffer scratch, Buffer plan);

    model::DecoderParts parts();
    cache::LayerPages scaled(const cache::LayerPages& pages) const;  // by the network's own scale
    void enter(const TokenView& tokens, const Matrix& before);
    Matrix leave(const batch::BatchView& batch, const Matrix& after);

    std::unique_ptr<Network> network_;
    const ops::Backend& backend_;
    const mla::Kernels& kernels_;
    model::DecoderRule rule_;
    Arena activations_arena_;
    Arena scratch_;
    Buffer attention_plan_;
    model::Activations a_;
    OpContext context_;
};

}  // namespace espalier::draft
