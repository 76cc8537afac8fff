// SPDX-License-Identifier: Apache-2.0
#include "linalg/weight.hpp"

namespace espalier::linalg {
namespace {

Expected<void> check_scales(const WeightSource& source) {
    const WeightFormat& format = source.format;
    if (format.group_n <= 0 || format.group_k <= 0)
        return fail(ErrorKind::invalid, "{} weights with scales in groups of {} × {}",
                    name_of(format.code), format.group_n, format.group_k);
    if (source.scales == nullptr)
        return fail(ErrorKind::invalid, "{} weights [{}, {}] without scales", name_of(format.code),
                    source.n, source.k);
    if (format.zero_points && (source.zeros == nullptr || format.scale != ScaleType::f32))
        return fail(ErrorKind::invalid,
                    "{} weights [{}, {}] without zero points, or with scales that are not f32",
                    name_of(format.code), source.n, source.k);
    if (source.first_row < 0 || source.first_col < 0)
        return fail(ErrorKind::invalid, "{} weights begin at row {}, column {} of their scales",
                    name_of(format.code), source.first_row, source.first_col);
    const std::int64_t stored_cols = source.transposed ? source.n : source.k;
    const std::int64_t columns_of_one = source.transposed ? format.group_n : format.group_k;
    if ((source.first_col + stored_cols - 1) / columns_of_one >= source.scale_stride)
        return fail(ErrorKind::invalid,
                    "{} weights end at column {} but a row of scales has {} blocks of {}",
                    name_of(format.code), source.first_col + stored_cols, source.scale_stride,
                    columns_of_one);
    if (format.group_k > kLongestGroup && format.group_k % kLongestGroup != 0)
        return fail(ErrorKind::unsupported,
                    "{} weights with a scale for {} inputs: more than {} and no multiple of it",
                    name_of(format.code), format.group_k, kLongestGroup);
    // A group of k has one scale per output, so it must lie in one block of the grid.
    const std::int64_t phase = grid_origin(source).k % format.group_k;
    if (phase != 0 && phase + source.k > format.group_k)
        return fail(
            ErrorKind::unsupported,
            "{} weights with {} inputs begin at input {} of their scale grid, no multiple of {}",
            name_of(format.code), source.k, grid_origin(source).k, format.group_k);
    return {};
}

Expected<void> check_source(const WeightSource& source) {
    if (source.n <= 0 || source.k <= 0)
        return fail(ErrorKind::invalid, "weights of shape [{}, {}] cannot be packed", source.n,
                    source.k);
    if (source.data == nullptr)
        return fail(ErrorKind::invalid, "weights [{}, {}] without data", source.n, source.k);
    const std::int64_t stored_cols = source.transposed ? source.n : source.k;
    const int bits = facts_of(source.format.code).bits;
    if (bits < 8 && (source.transposed || source.row_stride % 2 != 0 || source.k % 2 != 0))
        return fail(
            ErrorKind::unsupported, "{} weights {}", name_of(source.format.code),
            source.transposed ? "stored by inputs" : "whose rows do not begin with whole bytes");
    if (source.row_stride < stored_cols)
        return fail(ErrorKind::invalid, "weights with {} stored columns have a row stride of {}",
                    stored_cols, source.row_stride);
    ESPALIER_ASSIGN_OR_RETURN(
        const std::int64_t weights,
        checked_product(source.transposed ? source.k : source.n, source.row_stride));
    ESPALIER_RETURN_IF_ERROR(checked_product(weights, facts_of(source.format.code).bits));
    if (source.format.scaled()) return check_scales(source);
    return {};
}

}  // namespace

Expected<std::int64_t> checked_product(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product))
        return fail(ErrorKind::invalid, "packed weights: {} times {} does not fit 64 bits", a, b);
    return product;
}

GridOrigin grid_origin(const WeightSource& source) {
    return source.transposed ? GridOrigin{.n = source.first_col, .k = source.first_row}
                             : GridOrigin{.n = source.first_row, .k = source.first_col};
}

namespace {

// Place in the grid.
std::int64_t group_at(const WeightSource& source, std::int64_t n, std::int64_t group) {
    const GridOrigin origin = grid_origin(source);
    const std::int64_t k = group * packed_format(source.format).group_k;
    const std::int64_t k_block = (origin.k + k) / source.format.group_k;
    const std::int64_t n_block = (origin.n + n) / source.format.group_n;
    return source.transposed ? k_block * source.scale_stride + n_block
                             : n_block * source.scale_stride + k_block;
}

}  // namespace

float zero_of(const WeightSource& source, std::int64_t n, std::int64_t group) {
    return load_element(source.zeros, DType::f32, group_at(source, n, group));
}

float scale_of(const WeightSource& source, std::int64_t n, std::int64_t group) {
    const std::int64_t at = group_at(source, n, group);
    const float scale = load_element(source.scales, dtype_of(source.format.scale), at);
    return source.format.tensor_scale ? scale * source.tensor_scale : scale;
}

Expected<WeightView> common_shape(WeightStack stack, ZeroPoints zero_points) {
    if (stack.empty() || stack[0].empty()) return fail(ErrorKind::invalid, "nothing to pack");
    WeightView shape;
    shape.count = static_cast<std::int64_t>(stack.size());
    const WeightFormat& format = stack[0][0].format;
    shape.format = packed_format(format);
    shape.k = stack[0][0].k;
    for (std::size_t index = 0; index < stack.size(); ++index) {
        std::int64_t n = 0;
        for (const WeightSource& source : stack[index]) {
            ESPALIER_RETURN_IF_ERROR(check_source(source));
            if (source.format.zero_points && zero_points == ZeroPoints::refused)
                return fail(ErrorKind::unsupported, "{} weights with zero points",
                            name_of(source.format.code));
            if (source.k != shape.k)
                return fail(ErrorKind::invalid, "joined weights disagree: {} inputs and {}",
                            shape.k, source.k);
            if (source.format != format)
                return fail(ErrorKind::invalid, "joined weights disagree: {} and {}",
                            name_of(format.code), name_of(source.format.code));
            if (__builtin_add_overflow(n, source.n, &n))
                return fail(ErrorKind::invalid, "joined outputs: {} and {} more do not fit 64 bits",
                            n, source.n);
        }
        if (index == 0) shape.n = n;
        if (n != shape.n)
            return fail(ErrorKind::invalid,
                        "matrix {} of the stack has {} outputs, the first has {}", index, n,
                        shape.n);
    }
    // Rounding up to a panel or a pair must not overflow either.
    constexpr std::int64_t kLimit = std::int64_t{1} << 62;
    if (shape.n > kLimit || shape.k > kLimit)
        return fail(ErrorKind::invalid, "weights of shape [{}, {}] cannot be packed", shape.n,
                    shape.k);
    return shape;
}

}  // namespace espalier::linalg
