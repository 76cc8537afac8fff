// SPDX-License-Identifier: Apache-2.0
// A matrix of a checkpoint before it is packed: as it lies in the mapped file, or made of what lies
// there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/quantization.hpp"
#include "linalg/weight.hpp"

namespace espalier::model {

// A matrix [n, k] still in the mapped file.
struct StoredMatrix {
    checkpoint::StoredWeight stored;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::optional<checkpoint::Tensor> other_half = {};  // kv_b's, where it is stored in halves
    std::vector<std::byte> made = {};  // [n, k] numbers in place of what is stored, if not empty
    WeightCode made_code = WeightCode::bf16;

    // Format in which it is packed.
    WeightFormat format() const {
        return made.empty() ? stored.format : WeightFormat{.code = made_code};
    }
    // Stored rows [first, first + rows), as they lie or transposed; not of blocks.
    linalg::WeightSource rows(std::int64_t first, std::int64_t rows, bool transposed = false) const;
    linalg::WeightSource whole() const { return rows(0, n); }
    // Fills `made` with bf16, each number rounded once.
    void widen();
};

// The element of a plain type: F32, F16 or BF16.
DType dtype_of(checkpoint::StoredType type);
// Numbers of a tensor of a plain type or of blocks.
std::vector<float> widen(const checkpoint::Tensor& tensor);

// kv_b of its halves: numbers of one plain type keep it, others become bf16.
StoredMatrix join_halves(checkpoint::KvHalves halves, const checkpoint::ModelConfig& config);

}  // namespace espalier::model
