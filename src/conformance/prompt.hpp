// SPDX-License-Identifier: Apache-2.0
// The decompressed entry with random up-projections: the weights in both layouts (panels for the
// CPU, bf16 rows for CUDA; the oracle reads any), and running prompts through a device.
#pragma once

#include "conformance/run.hpp"

namespace espalier::conformance {

// Random halves of W_kv_b: any order of random numbers is a packed matrix, and the oracle says
// which.
class UpWeights {
  public:
    UpWeights(Random& random, WeightCode code, int heads, std::int64_t outputs,
              std::int64_t latent);
    const linalg::WeightView& view() const { return view_; }

  private:
    linalg::WeightView view_;
    std::vector<std::byte> data_;
    std::vector<float> scales_;
};

class Prompt {
  public:
    Prompt(Random& random, WeightCode weights, int heads, const HeadDims& dims = {},
           const KeyDims& keys = {});

    int heads() const { return heads_; }
    const HeadDims& dims() const { return dims_; }
    std::int64_t query_columns() const { return dims_.nope + mla::kRope; }
    Row row(Random& random, int tokens, int keys) const;
    Expected<Result> run(Device& device, mla::KvFormat format, const std::vector<Row>& rows,
                         const Layout& layout = {}, const RunOptions& options = {}) const;
    Expected<Result> oracle(mla::KvFormat format, const std::vector<Row>& rows,
                            const Layout& layout = {}) const;

  private:
    mla::DecompressedCall call(const Batch& batch, const RunOptions& options) const;
    std::vector<Bf16> plain_rows() const;

    int heads_;
    HeadDims dims_;
    KeyDims keys_;
    UpWeights up_key_;
    UpWeights up_value_;
};

// The weights a cache usually comes with: bf16, or f32 for a cache of f32.
WeightCode usual_weights(const Device& device, mla::KvFormat format);

// The smallest call there is: whether the device takes the format.
Expected<void> ask_decompressed(Device& device, mla::KvFormat format, const KeyDims& dims,
                                DType query);

}  // namespace espalier::conformance
