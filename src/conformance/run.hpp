// SPDX-License-Identifier: Apache-2.0
// One call on a device: a batch placed into its memory, the absorbed entry run over it, outputs
// brought back. Outputs start as poison, so what a kernel forgets to write is seen.
#pragma once

#include <vector>

#include "conformance/batch.hpp"
#include "conformance/device.hpp"

namespace espalier::conformance {

inline constexpr float kUsualScale = 0.0721687836f;  // 1/√192

struct RunOptions {
    int workers = 1;                 // CPU
    int multiprocessors = 0;         // CUDA; 0: all
    std::int64_t partial_bytes = 0;  // CUDA: workspace for partial results; 0: the usual one
    DType out_dtype = DType::f32;
    float scale = kUsualScale;
    bool invariant = true;
    bool want_lse = true;
};

struct Result {
    std::int64_t columns = 0;
    int heads = 0;
    std::vector<float> out;  // [tokens, heads, columns], widened exactly
    std::vector<float> lse;  // [tokens, heads]; empty if not wanted

    std::int64_t tokens() const {
        return static_cast<std::int64_t>(out.size()) / (heads * columns);
    }
    const float* row(std::int64_t token, int head) const {
        return out.data() + (token * heads + head) * columns;
    }
    float lse_of(std::int64_t token, int head) const {
        return lse[static_cast<std::size_t>(token * heads + head)];
    }
};

// A batch's arrays in a device's memory.
class PlacedBatch {
  public:
    static Expected<PlacedBatch> place(Device& device, const Batch& batch);
    // Other contents of the same sizes, in place.
    Expected<void> refill(const Batch& batch);

    mla::RaggedRows rows() const { return rows_; }
    mla::KvPages kv() const { return kv_; }
    const std::byte* query() const { return query_.data(); }

  private:
    PlacedBatch(Device& device, const Batch& batch)
        : device_(&device), rows_(batch.view()), kv_(batch.kv()) {}
    template <typename T>
    Expected<const T*> put(Buffer& buffer, const std::vector<T>& values);
    Expected<void> fill(const Batch& batch);

    Device* device_;
    mla::RaggedRows rows_;
    mla::KvPages kv_;
    Buffer pages_, query_, q_indptr_, kv_len_, block_table_, table_row_, mask_, tail_len_, words_,
        custom_mask_, custom_mask_offset_, global_kv_len_;
};

// Destination of a call's writes.
class PlacedOutput {
  public:
    static Expected<PlacedOutput> place(Device& device, std::int64_t tokens, int heads,
                                        std::int64_t columns, const RunOptions& options);
    std::byte* out() { return out_.data(); }
    float* lse() { return lse_.as<float>(); }
    // Poison again.
    Expected<void> clear();
    // An error if the kernel wrote outside its arrays.
    Expected<Result> read();

  private:
    explicit PlacedOutput(Device& device) : device_(&device) {}

    Device* device_;
    std::int64_t columns_ = 0;
    int heads_ = 0;
    DType dtype_ = DType::f32;
    Buffer out_, lse_;
};

mla::Capacities capacities_of(const Batch& batch, const RunOptions& options);
mla::AbsorbedCall absorbed_call(const PlacedBatch& placed, const Batch& batch, PlacedOutput& output,
                                const RunOptions& options);
Expected<Result> run_absorbed(Device& device, const Batch& batch, const RunOptions& options = {});

// The double oracle over the batch as it lies in host memory, rows in parallel on `pool`.
Expected<Result> oracle_absorbed(CpuDevice& host, const Batch& batch, float scale = kUsualScale);

}  // namespace espalier::conformance
