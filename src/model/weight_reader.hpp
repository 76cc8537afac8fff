// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a checkpoint into the packed form: shapes and dtypes checked, FP8 scales kept
// beside their weights, the mapped pages let go once packed. Weights::load says what is read; this
// says how.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "linalg/packed.hpp"
#include "model/weights.hpp"

namespace espalier::model {

// A matrix still in the mapped file, with its scales if it is FP8.
struct StoredMatrix {
    checkpoint::Tensor tensor;
    DType dtype = DType::f32;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::vector<float> scale_inv;  // FP8: [ceil(n/128), ceil(k/128)]

    // Stored rows [first, first + rows), as they lie or transposed.
    linalg::WeightSource rows(std::int64_t first, std::int64_t rows, bool transposed = false) const;
    linalg::WeightSource whole() const { return rows(0, n); }
};

class WeightReader {
  public:
    WeightReader(const checkpoint::Checkpoint& checkpoint, CpuDevice& device,
                 const Weights::Progress& progress);

    // `name` without ".weight"; [n, k].
    Expected<StoredMatrix> stored(const std::string& name, std::int64_t n, std::int64_t k) const;
    Expected<PackedMatrix> matrix(const std::string& name, std::int64_t n, std::int64_t k);
    struct Part {
        std::string name;
        std::int64_t n;
    };
    // Several matrices of one k joined along n.
    Expected<PackedMatrix> joined(std::initializer_list<Part> parts, std::int64_t k);
    // A stack (experts): matrix i joins `parts[i]`.
    Expected<PackedMatrix> stack(const std::vector<std::vector<Part>>& parts, std::int64_t k);
    Expected<PackedMatrix> pack(const std::vector<std::vector<linalg::WeightSource>>& stack);
    // Widened to f32; [n].
    Expected<std::vector<float>> vector(const std::string& name, std::int64_t n);
    // Rows in the mapped file, or copied to `copy` if the file does not align them.
    Expected<ops::EmbeddingTable> embedding(const std::string& name, std::int64_t vocabulary,
                                            std::int64_t hidden, Buffer& copy);
    // The router is computed in f32 whatever its stored dtype: [n, k] widened.
    Expected<PackedMatrix> widened(const std::string& name, std::int64_t n, std::int64_t k);

    // A stored matrix has been packed: count its bytes and let its pages go.
    void release(const checkpoint::Tensor& tensor);
    bool has(const std::string& name) const { return checkpoint_.has(name); }

  private:
    const checkpoint::Checkpoint& checkpoint_;
    CpuDevice& device_;
    const Weights::Progress& progress_;
    std::uint64_t done_ = 0;
    std::uint64_t total_ = 0;
};

}  // namespace espalier::model
