// SPDX-License-Identifier: Apache-2.0
// In place of attention's kernels on a GPU, with their declarations.
#pragma once

#include "mla/contract.hpp"

namespace espalier::order_test {

class FakeKernels final : public mla::Kernels {
  public:
    // launches: of an absorbed call.
    explicit FakeKernels(int launches) : launches_(launches) {}

    Expected<void> absorbed(OpContext& context, const mla::AbsorbedCall& call) const override;
    Expected<void> plan(OpContext& context, const mla::AbsorbedCall& call) const override;
    std::size_t plan_bytes(const mla::Capacities&) const override { return 2 * 4096; }
    Expected<void> decompressed(OpContext& context,
                                const mla::DecompressedCall& call) const override;
    Expected<void> append(OpContext& context, const mla::AppendCall& call) const override;
    Expected<void> compact(OpContext& context, const mla::CompactCall& call) const override;
    std::size_t scratch_bytes(const mla::Capacities&) const override { return 4 * 4096; }

  private:
    int launches_;
};

}  // namespace espalier::order_test
