// SPDX-License-Identifier: Apache-2.0
#include "model/weight_reader.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/element.hpp"

namespace espalier::model {
namespace {

using checkpoint::StoredType;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

DType dtype_of(StoredType type) {
    switch (type) {
        case StoredType::f32:
            return DType::f32;
        case StoredType::f16:
            return DType::f16;
        case StoredType::bf16:
            return DType::bf16;
        case StoredType::e4m3:
            return DType::e4m3;
        default:
            break;
    }
    CHECK(false, "{} is no weight dtype", checkpoint::name_of(type));
}

std::vector<float> widen(const checkpoint::Tensor& tensor) {
    const DType dtype = dtype_of(tensor.type);
    std::vector<float> values(tensor.bytes.size() / bytes_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = load_element(tensor.bytes.data(), dtype, static_cast<std::int64_t>(i));
    return values;
}

}  // namespace

linalg::WeightSource StoredMatrix::rows(std::int64_t first, std::int64_t count,
                                        bool transposed) const {
    linalg::WeightSource source;
    source.data = tensor.bytes.data() + first * k * static_cast<std::int64_t>(bytes_of(dtype));
    source.dtype = dtype;
    source.n = transposed ? k : count;
    source.k = transposed ? count : k;
    source.row_stride = k;
    source.transposed = transposed;
    if (dtype == DType::e4m3) {
        source.scale_inv = scale_inv.data();
        source.scale_stride = ceil_div(k, linalg::kScaleBlock);
        source.first_row = first;
    }
    return source;
}

WeightReader::WeightReader(const checkpoint::Checkpoint& checkpoint, CpuDevice& device,
                           const Weights::Progress& progress)
    : checkpoint_(checkpoint),
      device_(device),
      progress_(progress),
      total_(checkpoint.total_bytes()) {}

void WeightReader::release(const checkpoint::Tensor& tensor) {
    tensor.file->file().done_with(tensor.bytes);
    done_ += tensor.bytes.size();
    if (progress_) progress_(std::min(done_, total_), total_);
}

Expected<StoredMatrix> WeightReader::stored(const std::string& name, std::int64_t n,
                                            std::int64_t k) const {
    StoredMatrix matrix;
    matrix.n = n;
    matrix.k = k;
    ESPALIER_ASSIGN_OR_RETURN(matrix.tensor, checkpoint_.find(name + ".weight", {n, k},
                                                              {StoredType::bf16, StoredType::e4m3,
                                                               StoredType::f32, StoredType::f16}));
    matrix.dtype = dtype_of(matrix.tensor.type);
    if (matrix.dtype == DType::e4m3) {
        ESPALIER_ASSIGN_OR_RETURN(
            const checkpoint::Tensor scales,
            checkpoint_.find(name + ".weight_scale_inv",
                             {ceil_div(n, linalg::kScaleBlock), ceil_div(k, linalg::kScaleBlock)},
                             {StoredType::f32}));
        matrix.scale_inv = widen(scales);
    }
    return matrix;
}

Expected<PackedMatrix> WeightReader::pack(
    const std::vector<std::vector<linalg::WeightSource>>& stack) {
    std::vector<std::span<const linalg::WeightSource>> views(stack.begin(), stack.end());
    return PackedMatrix::pack(device_, views);
}

Expected<PackedMatrix> WeightReader::stack(const std::vector<std::vector<Part>>& parts,
                                           std::int64_t k) {
    std::vector<std::vector<StoredMatrix>> matrices(parts.size());
    std::vector<std::vector<linalg::WeightSource>> sources(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
        for (const Part& part : parts[i]) {
            ESPALIER_ASSIGN_OR_RETURN(StoredMatrix matrix, stored(part.name, part.n, k));
            matrices[i].push_back(std::move(matrix));
        }
        const DType first = matrices.front().front().dtype;
        for (const StoredMatrix& matrix : matrices[i]) {
            if (matrix.dtype != first)
                return fail(ErrorKind::unsupported,
                            "{} is {} but {}, which is computed with it, is {}", matrix.tensor.name,
                            espalier::name_of(matrix.dtype), matrices.front().front().tensor.name,
                            espalier::name_of(first));
            sources[i].push_back(matrix.whole());
        }
    }
    ESPALIER_ASSIGN_OR_RETURN(PackedMatrix packed, pack(sources));
    for (const auto& group : matrices)
        for (const StoredMatrix& matrix : group) release(matrix.tensor);
    return packed;
}

Expected<PackedMatrix> WeightReader::joined(std::initializer_list<Part> parts, std::int64_t k) {
    return stack({std::vector<Part>(parts)}, k);
}

Expected<PackedMatrix> WeightReader::matrix(const std::string& name, std::int64_t n,
                                            std::int64_t k) {
    return joined({{name, n}}, k);
}

Expected<std::vector<float>> WeightReader::vector(const std::string& name, std::int64_t n) {
    ESPALIER_ASSIGN_OR_RETURN(
        const checkpoint::Tensor tensor,
        checkpoint_.find(name, {n}, {StoredType::bf16, StoredType::f32, StoredType::f16}));
    std::vector<float> values = widen(tensor);
    release(tensor);
    return values;
}

Expected<PackedMatrix> WeightReader::widened(const std::string& name, std::int64_t n,
                                             std::int64_t k) {
    ESPALIER_ASSIGN_OR_RETURN(
        const checkpoint::Tensor tensor,
        checkpoint_.find(name, {n, k}, {StoredType::bf16, StoredType::f32, StoredType::f16}));
    const std::vector<float> values = widen(tensor);
    linalg::WeightSource source;
    source.data = reinterpret_cast<const std::byte*>(values.data());
    source.dtype = DType::f32;
    source.n = n;
    source.k = k;
    source.row_stride = k;
    ESPALIER_ASSIGN_OR_RETURN(PackedMatrix packed, PackedMatrix::pack(device_, source));
    release(tensor);
    return packed;
}

Expected<ops::EmbeddingTable> WeightReader::embedding(const std::string& name,
                                                      std::int64_t vocabulary, std::int64_t hidden,
                                                      Buffer& copy) {
    ESPALIER_ASSIGN_OR_RETURN(
        const checkpoint::Tensor tensor,
        checkpoint_.find(name, {vocabulary, hidden},
                         {StoredType::bf16, StoredType::f32, StoredType::f16}));
    ops::EmbeddingTable table;
    table.dtype = dtype_of(tensor.type);
    table.vocabulary = vocabulary;
    table.hidden = hidden;
    table.data = tensor.bytes.data();
    if (reinterpret_cast<std::uintptr_t>(table.data) % bytes_of(table.dtype) != 0) {
        ESPALIER_ASSIGN_OR_RETURN(copy, device_.allocate(tensor.bytes.size()));
        std::memcpy(copy.data(), tensor.bytes.data(), tensor.bytes.size());
        table.data = copy.data();
    }
    return table;
}

}  // namespace espalier::model
