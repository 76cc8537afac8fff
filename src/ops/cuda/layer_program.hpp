// SPDX-License-Identifier: Apache-2.0
// The layer program on Hopper: which operations share a launch, and in which order they come.
#pragma once

#include <cstdint>

#include "mla/raw_append.hpp"
#include "ops/cuda/arrived.hpp"
#include "ops/layer_program.hpp"

namespace espalier::ops::cuda {

class CudaProgram final : public LayerProgram {
  public:
    CudaProgram(const Operations& operations, const Arrived& arrived)
        : LayerProgram(operations), arrived_(arrived) {}

    Expected<linalg::Weight> pack_gated(Device& device, linalg::WeightStack stack) const override;
    bool joins_up_projections() const override { return true; }
    Expected<linalg::Weight> pack_up_projection(Device& device, const linalg::WeightSource& rows,
                                                std::int64_t heads) const override;
    Expected<void> write_keys(OpContext& context, const mla::Kernels& kernels, const Matrix& input,
                              const KeysCall& keys) const override;
    Expected<Terms> attend(OpContext& context, const mla::Kernels& kernels, const Matrix& input,
                           const AttentionCall& call) const override;
    Expected<Terms> write_keys_and_attend(OpContext& context, const mla::Kernels& kernels,
                                          const Matrix& input, const KeysCall& keys,
                                          const AttentionCall& call) const override;
    Terms feed_forward(OpContext& context, const Matrix& x,
                       const FeedForward& network) const override;
    Terms experts(OpContext& context, const Matrix& x, const RouterCall& router,
                  const FeedForward& experts, const FeedForward& shared) const override;
    void add(OpContext& context, const Terms& terms, const Matrix& residual,
             const AfterTerms& after) const override;

  private:
    Expected<Terms> attend_projected(OpContext& context, const mla::Kernels& kernels,
                                     const AttentionCall& call) const;

    Arrived arrived_;
};

}  // namespace espalier::ops::cuda
