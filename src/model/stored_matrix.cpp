// SPDX-License-Identifier: Apache-2.0
#include "model/stored_matrix.hpp"

#include <utility>

#include "base/at.hpp"
#include "base/check.hpp"
#include "base/element.hpp"
#include "linalg/round_weights.hpp"

namespace espalier::model {

using checkpoint::StoredType;

DType dtype_of(StoredType type) {
    switch (type) {
        case StoredType::f32:
            return DType::f32;
        case StoredType::f16:
            return DType::f16;
        case StoredType::bf16:
            return DType::bf16;
        default:
            break;
    }
    CHECK(false, "{} is no element", checkpoint::name_of(type));
}

std::vector<float> widen(const checkpoint::Tensor& tensor) {
    if (const BlockFacts& facts = facts_of(tensor.block); tensor.block != BlockCode::none) {
        std::vector<float> values(tensor.bytes.size() / static_cast<std::size_t>(facts.bytes) *
                                  static_cast<std::size_t>(facts.weights));
        widen_blocks(tensor.block, tensor.bytes.data(), std::ssize(values), values.data());
        return values;
    }
    const DType dtype = dtype_of(tensor.type);
    std::vector<float> values(tensor.bytes.size() / bytes_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = load_element(tensor.bytes.data(), dtype, static_cast<std::int64_t>(i));
    return values;
}

linalg::WeightSource StoredMatrix::rows(std::int64_t first, std::int64_t count,
                                        bool transposed) const {
    CHECK(!is_unpacked(), "'{}' is {} and no source of weights", stored.weights.name,
          stored.weights.type_name());
    linalg::WeightSource source;
    source.format = format();
    source.n = transposed ? k : count;
    source.k = transposed ? count : k;
    source.transposed = transposed;
    if (transposed) std::swap(source.format.group_n, source.format.group_k);
    const std::int64_t row = first_row + first;
    if (!made.empty()) {
        source.row_stride = stored_columns();
        source.data = made.data() + format().bytes(row * stored_columns() + first_col);
        return source;
    }
    source.row_stride = stored.row_stride;
    source.data =
        stored.weights.bytes.data() + stored.format.bytes(row * stored.row_stride + first_col);
    source.tensor_scale = stored.tensor_scale;
    source.offset_codes = stored.offset_codes;
    if (const std::byte* scales = stored.scale_data(); scales != nullptr) {
        source.scales = scales;
        source.scale_stride = stored.scale_stride(stored_columns());
        source.first_row = row;
        source.first_col = first_col;
    }
    return source;
}

StoredMatrix StoredMatrix::part(const linalg::Part& rows, const linalg::Part& inputs) const {
    CHECK(rows.first + rows.count <= n && inputs.first + inputs.count <= k,
          "{} rows from {}, {} columns from {} of '{}' [{}, {}]", rows.count, rows.first,
          inputs.count, inputs.first, stored.weights.name, n, k);
    StoredMatrix some = *this;
    some.columns = stored_columns();
    some.first_row += rows.first;
    some.first_col += inputs.first;
    some.n = rows.count;
    some.k = inputs.count;
    return some;
}

linalg::ShiftedWeights StoredMatrix::without_shift(ThreadPool& pool) const {
    using Layout = linalg::ShiftedSource::Layout;
    const bool awq = stored.layout == checkpoint::QuantizedLayout::awq;
    const bool bytes = stored.layout == checkpoint::QuantizedLayout::int8;
    const std::vector<std::int64_t>& shape = stored.weights.shape;
    return linalg::ShiftedWeights::make(pool, {.layout = awq     ? Layout::awq
                                                         : bytes ? Layout::bytes
                                                                 : Layout::packed,
                                               .format = stored.format,
                                               .scale_type = dtype_of(stored.scales->type),
                                               .n = awq ? shape[1] * 8 : shape[0],
                                               .k = stored_columns(),
                                               .row_stride = stored.row_stride,
                                               .codes = stored.weights.bytes.data(),
                                               .scales = stored.scales->bytes.data(),
                                               .zeros = stored.zeros->bytes.data()});
}

linalg::WeightSource StoredMatrix::part_of(const linalg::ShiftedWeights& whole) const {
    linalg::WeightSource source = whole.source();
    source.data += source.format.bytes(first_row * source.row_stride + first_col);
    source.n = n;
    source.k = k;
    source.first_row = first_row;
    source.first_col = first_col;
    return source;
}

void StoredMatrix::widen() {
    CHECK(first_col == 0 && k == stored_columns(), "columns of '{}' widened", stored.weights.name);
    std::vector<std::byte> values(static_cast<std::size_t>(n * k) * sizeof(Bf16));
    std::vector<float> row(static_cast<std::size_t>(k));
    std::optional<linalg::ShiftedWeights> unshifted;
    linalg::WeightSource source;
    if (made.empty() && stored.zeros) {
        ThreadPool alone(1);
        unshifted = without_shift(alone);
        source = part_of(*unshifted);
    } else if (stored.block == BlockCode::none) {
        source = whole();
    }
    const BlockFacts& facts = facts_of(stored.block);
    for (std::int64_t output = 0; output < n; ++output) {
        if (stored.block == BlockCode::none)
            linalg::widen_output(source, output, row.data());
        else
            widen_blocks(stored.block,
                         stored.weights.bytes.data() +
                             (first_row + output) * (k / facts.weights) * facts.bytes,
                         k, row.data());
        for (std::int64_t i = 0; i < k; ++i)
            store_element(values.data(), DType::bf16, output * k + i, at(row, i));
    }
    made = std::move(values);
    made_code = WeightCode::bf16;
    first_row = 0;
}

StoredMatrix join_halves(checkpoint::KvHalves halves, const checkpoint::ModelConfig& config) {
    const std::int64_t heads = config.num_attention_heads, latent = config.kv_lora_rank;
    const auto [nope, value_rows] = config.head_dims();
    const std::int64_t head_rows = nope + value_rows;
    const StoredType type = halves.key.weights.type;
    const bool plain = type != StoredType::blocks && type == halves.value.weights.type;
    const DType dtype = plain ? dtype_of(type) : DType::bf16;
    StoredMatrix joined{.stored = std::move(halves.key),
                        .n = heads * head_rows,
                        .k = latent,
                        .other_half = std::move(halves.value.weights)};
    joined.made_code = plain ? joined.stored.format.code : WeightCode::bf16;
    joined.made.resize(static_cast<std::size_t>(joined.n * latent) * bytes_of(dtype));
    const std::vector<float> key = widen(joined.stored.weights), value = widen(*joined.other_half);
    for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t row = 0; row < head_rows; ++row)
            for (std::int64_t column = 0; column < latent; ++column)
                store_element(joined.made.data(), dtype, (head * head_rows + row) * latent + column,
                              row < nope
                                  ? at(key, (head * latent + column) * nope + row)
                                  : at(value, (head * value_rows + row - nope) * latent + column));
    return joined;
}

}  // namespace espalier::model
