// SPDX-License-Identifier: Apache-2.0
// A matrix of a checkpoint before it is packed: as it lies in the mapped file, or made of what lies
// there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/quantization.hpp"
#include "linalg/shifted_weights.hpp"
#include "linalg/weight.hpp"

namespace espalier::model {

// A matrix [n, k], or a part of one, still in the mapped file.
struct StoredMatrix {
    checkpoint::StoredWeight stored;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::optional<checkpoint::Tensor> other_half = {};  // kv_b's, where it is stored in halves
    std::vector<std::byte> made = {};  // [n, k] numbers in place of what is stored, if not empty
    WeightCode made_code = WeightCode::bf16;
    // Begin of a part in the stored, or made, matrix and that one's columns.
    std::int64_t first_row = 0;
    std::int64_t first_col = 0;
    std::int64_t columns = 0;  // 0: k

    // Format in which it is packed.
    WeightFormat format() const {
        return made.empty() ? stored.format : WeightFormat{.code = made_code};
    }
    // Stored rows [first, first + rows), as they lie or transposed; not of blocks.
    linalg::WeightSource rows(std::int64_t first, std::int64_t rows, bool transposed = false) const;
    linalg::WeightSource whole() const { return rows(0, n); }
    // The part of these rows and columns. Its numbers alone are read when it is packed.
    StoredMatrix part(const linalg::Part& rows, const linalg::Part& columns) const;
    std::int64_t stored_columns() const { return columns == 0 ? k : columns; }
    // True for weights that are packed from copies of what is stored: codes or scales change.
    bool is_unpacked() const {
        return made.empty() && (stored.block != BlockCode::none || stored.zeros.has_value());
    }
    // Of weights with zero points: a copy of all that is stored, and this part of it.
    linalg::ShiftedWeights without_shift(ThreadPool& pool) const;
    linalg::WeightSource part_of(const linalg::ShiftedWeights& whole) const;
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
