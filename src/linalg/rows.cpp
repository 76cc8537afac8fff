// SPDX-License-Identifier: Apache-2.0
#include "linalg/rows.hpp"

#include <cstring>
#include <vector>

namespace espalier::linalg {
namespace {

// Output n of a source: k weights, one after another, codes in two's complement. Rows are whole
// bytes.
void copy_output(const WeightSource& source, std::int64_t n, std::byte* to) {
    const std::int64_t bytes = source.format.bytes(source.k);
    if (!source.transposed) {
        std::memcpy(to, source.data + source.format.bytes(n * source.row_stride),
                    static_cast<std::size_t>(bytes));
    } else {
        const std::int64_t element = source.format.bytes(1);
        for (std::int64_t k = 0; k < source.k; ++k)
            std::memcpy(to + k * element, source.data + (k * source.row_stride + n) * element,
                        static_cast<std::size_t>(element));
    }
    if (!source.offset_codes) return;
    const auto flip = static_cast<std::byte>(facts_of(source.format.code).bits == 4 ? 0x88 : 0x80);
    for (std::int64_t i = 0; i < bytes; ++i) to[i] ^= flip;
}

}  // namespace

Expected<Weight> pack_rows(Device& device, WeightStack stack) {
    ESPALIER_ASSIGN_OR_RETURN(WeightView shape, common_shape(stack, ZeroPoints::taken));
    shape.layout = WeightLayout::rows;
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t weights, checked_product(shape.n, shape.k));
    ESPALIER_RETURN_IF_ERROR(checked_product(weights, facts_of(shape.format.code).bits));
    shape.matrix_bytes = shape.format.bytes(weights);
    shape.scale_bytes = shape.n * shape.scale_groups() * shape.scale_width();
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t data_bytes,
                              checked_product(shape.count, shape.matrix_bytes));
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t scale_bytes,
                              checked_product(shape.count, shape.scale_bytes));
    ESPALIER_ASSIGN_OR_RETURN(Buffer data, device.allocate(static_cast<std::size_t>(data_bytes)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer scales,
                              device.allocate(static_cast<std::size_t>(scale_bytes)));

    std::vector<std::byte> rows(static_cast<std::size_t>(shape.matrix_bytes));
    std::vector<std::byte> row_scales(static_cast<std::size_t>(shape.scale_bytes));
    for (std::size_t index = 0; index < stack.size(); ++index) {
        std::byte* row = rows.data();
        std::int64_t scale = 0;
        for (const WeightSource& source : stack[index])
            for (std::int64_t n = 0; n < source.n; ++n) {
                copy_output(source, n, row);
                row += shape.format.bytes(shape.k);
                for (std::int64_t group = 0; group < shape.scale_groups(); ++group) {
                    const DType type = dtype_of(shape.format.scale);
                    store_element(row_scales.data(), type, scale++, scale_of(source, n, group));
                    if (shape.format.zero_points)
                        store_element(row_scales.data(), type, scale++, zero_of(source, n, group));
                }
            }
        const auto place = static_cast<std::int64_t>(index);
        ESPALIER_RETURN_IF_ERROR(device.upload(
            device.stream(), data.data() + place * shape.matrix_bytes, rows.data(), rows.size()));
        ESPALIER_RETURN_IF_ERROR(device.upload(device.stream(),
                                               scales.data() + place * shape.scale_bytes,
                                               row_scales.data(), row_scales.size()));
    }
    return Weight(std::move(data), std::move(scales), shape);
}

}  // namespace espalier::linalg
