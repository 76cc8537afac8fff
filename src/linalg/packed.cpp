// SPDX-License-Identifier: Apache-2.0
// Packing: checks the sources, then every panel is filled by its own task. Padding is the zero of a
// fresh buffer.
#include "linalg/packed.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "linalg/pack_panel.hpp"

namespace espalier::linalg {
namespace {

using Sources = std::span<const WeightSource>;

Expected<std::int64_t> checked_product(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product))
        return fail(ErrorKind::invalid, "packed weights: {} times {} does not fit 64 bits", a, b);
    return product;
}

// Where the view begins in its scale grid and how long it is, along n and along k.
struct Extent {
    std::int64_t first_n, first_k;
};

Extent extent_of(const WeightSource& source) {
    return source.transposed ? Extent{source.first_col, source.first_row}
                             : Extent{source.first_row, source.first_col};
}

Expected<void> check_scales(const WeightSource& source) {
    if (source.scale_inv == nullptr)
        return fail(ErrorKind::invalid, "e4m3 weights [{}, {}] without scales", source.n, source.k);
    if (source.first_row < 0 || source.first_col < 0)
        return fail(ErrorKind::invalid, "e4m3 weights begin at row {}, column {} of their scales",
                    source.first_row, source.first_col);
    const std::int64_t stored_cols = source.transposed ? source.n : source.k;
    if ((source.first_col + stored_cols - 1) / kScaleBlock >= source.scale_stride)
        return fail(ErrorKind::invalid,
                    "e4m3 weights end at column {} but a row of scales has {} blocks of 128",
                    source.first_col + stored_cols, source.scale_stride);
    // A packed block of k has one scale per output, so it must lie in one block of the grid.
    const std::int64_t phase = extent_of(source).first_k % kScaleBlock;
    if (phase != 0 && phase + source.k > kScaleBlock)
        return fail(
            ErrorKind::unsupported,
            "e4m3 weights with {} inputs begin at input {} of their scale grid, no multiple of 128",
            source.k, extent_of(source).first_k);
    return {};
}

Expected<void> check_source(const WeightSource& source) {
    if (source.n <= 0 || source.k <= 0)
        return fail(ErrorKind::invalid, "weights of shape [{}, {}] cannot be packed", source.n,
                    source.k);
    if (source.data == nullptr)
        return fail(ErrorKind::invalid, "weights [{}, {}] without data", source.n, source.k);
    const std::int64_t stored_cols = source.transposed ? source.n : source.k;
    if (source.row_stride < stored_cols)
        return fail(ErrorKind::invalid, "weights with {} stored columns have a row stride of {}",
                    stored_cols, source.row_stride);
    const auto element = static_cast<std::int64_t>(bytes_of(source.dtype));
    ESPALIER_ASSIGN_OR_RETURN(
        const std::int64_t elements,
        checked_product(source.transposed ? source.k : source.n, source.row_stride));
    ESPALIER_RETURN_IF_ERROR(checked_product(elements, element));
    if (source.dtype == DType::e4m3) return check_scales(source);
    return {};
}

// The shape all matrices of the stack share.
Expected<PackedView> common_shape(std::span<const Sources> stack) {
    if (stack.empty() || stack[0].empty()) return fail(ErrorKind::invalid, "nothing to pack");
    PackedView shape;
    shape.count = static_cast<std::int64_t>(stack.size());
    shape.dtype = stack[0][0].dtype;
    shape.k = stack[0][0].k;
    for (std::size_t index = 0; index < stack.size(); ++index) {
        std::int64_t n = 0;
        for (const WeightSource& source : stack[index]) {
            ESPALIER_RETURN_IF_ERROR(check_source(source));
            if (source.k != shape.k)
                return fail(ErrorKind::invalid, "joined weights disagree: {} inputs and {}",
                            shape.k, source.k);
            if (source.dtype != shape.dtype)
                return fail(ErrorKind::invalid, "joined weights disagree: {} and {}",
                            name_of(shape.dtype), name_of(source.dtype));
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
    return shape;
}

// Bytes of all panels, and of all scales; computed with checks before PackedView's own arithmetic
// is trusted.
struct Sizes {
    std::int64_t data_bytes = 0;
    std::int64_t scale_bytes = 0;
};

Expected<Sizes> sizes_of(const PackedView& shape) {
    // Rounding up to a panel or a pair must not overflow either.
    constexpr std::int64_t kLimit = std::int64_t{1} << 62;
    if (shape.n > kLimit || shape.k > kLimit)
        return fail(ErrorKind::invalid, "weights of shape [{}, {}] cannot be packed", shape.n,
                    shape.k);
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t panels,
                              checked_product(shape.count, shape.panels()));
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t lanes, checked_product(panels, kPanel));
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t elements,
                              checked_product(lanes, shape.k_padded()));
    Sizes sizes;
    ESPALIER_ASSIGN_OR_RETURN(
        sizes.data_bytes,
        checked_product(elements, static_cast<std::int64_t>(bytes_of(shape.dtype))));
    if (shape.dtype == DType::e4m3) {
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t scales,
                                  checked_product(lanes, shape.scale_blocks()));
        ESPALIER_ASSIGN_OR_RETURN(sizes.scale_bytes,
                                  checked_product(scales, std::int64_t{sizeof(float)}));
    }
    return sizes;
}

void pack_scales(const PackedView& shape, const PanelRun& run, float* scales) {
    const WeightSource& source = *run.source;
    const Extent extent = extent_of(source);
    for (std::int64_t block = 0; block < shape.scale_blocks(); ++block) {
        const std::int64_t k_block = (extent.first_k + block * kScaleBlock) / kScaleBlock;
        for (std::int64_t lane = 0; lane < run.lanes; ++lane) {
            const std::int64_t n_block = (extent.first_n + run.first_n + lane) / kScaleBlock;
            const std::int64_t at = source.transposed ? k_block * source.scale_stride + n_block
                                                      : n_block * source.scale_stride + k_block;
            // A mapped file may hold the scales at any byte.
            std::memcpy(scales + block * kPanel + run.lane + lane,
                        reinterpret_cast<const std::byte*>(source.scale_inv) + at * 4, 4);
        }
    }
}

// Calls body(run) for every stretch of a panel that one source fills.
template <typename Body>
void for_runs(Sources sources, std::int64_t n, std::int64_t panel, Body&& body) {
    const std::int64_t begin = panel * kPanel, end = std::min(n, begin + kPanel);
    std::int64_t source_begin = 0;
    for (const WeightSource& source : sources) {
        const std::int64_t from = std::max(begin, source_begin),
                           to = std::min(end, source_begin + source.n);
        if (from < to) body(PanelRun{&source, from - source_begin, from - begin, to - from});
        source_begin += source.n;
    }
}

}  // namespace

PackedView PackedView::at(std::int64_t index) const {
    CHECK(index >= 0 && index < count, "matrix {} of {}", index, count);
    PackedView one = *this;
    one.count = 1;
    one.data += index * panels() * panel_bytes();
    if (scales != nullptr) one.scales += index * panels() * scale_blocks() * kPanel;
    return one;
}

PackedView PackedView::outputs(std::int64_t first, std::int64_t outputs) const {
    CHECK(count == 1, "outputs of a stack of {}: take one matrix first", count);
    CHECK(first % kPanel == 0 && first >= 0 && outputs >= 0 && outputs <= n - first,
          "outputs {} … +{} of {} (the first must be a multiple of 16)", first, outputs, n);
    PackedView some = *this;
    some.n = outputs;
    some.data += first / kPanel * panel_bytes();
    if (scales != nullptr) some.scales += first * scale_blocks();
    return some;
}

Expected<PackedMatrix> PackedMatrix::pack(CpuDevice& device,
                                          std::span<const std::span<const WeightSource>> stack) {
    PackedMatrix packed;
    ESPALIER_ASSIGN_OR_RETURN(packed.view_, common_shape(stack));
    PackedView& view = packed.view_;
    ESPALIER_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(view));
    ESPALIER_ASSIGN_OR_RETURN(packed.data_,
                              device.allocate(static_cast<std::size_t>(sizes.data_bytes)));
    ESPALIER_ASSIGN_OR_RETURN(packed.scales_,
                              device.allocate(static_cast<std::size_t>(sizes.scale_bytes)));
    view.data = packed.data_.data();
    if (view.dtype == DType::e4m3) view.scales = packed.scales_.as<float>();

    // About 256 KiB per task: small enough to share, large enough that a task's start does not
    // show.
    const std::int64_t panels = view.panels();
    const std::int64_t per_task =
        std::clamp<std::int64_t>((256 << 10) / view.panel_bytes(), 1, panels);
    const std::int64_t all_panels = view.count * panels;
    device.pool().run((all_panels + per_task - 1) / per_task, [&](std::int64_t task, int) {
        const std::int64_t end = std::min(all_panels, (task + 1) * per_task);
        for (std::int64_t index = task * per_task; index < end; ++index) {
            std::byte* panel = packed.data_.data() + index * view.panel_bytes();
            float* scales = packed.scales_.as<float>() + index * view.scale_blocks() * kPanel;
            for_runs(stack[static_cast<std::size_t>(index / panels)], view.n, index % panels,
                     [&](const PanelRun& run) {
                         pack_panel_run(run, panel);
                         if (view.dtype == DType::e4m3) pack_scales(view, run, scales);
                     });
        }
    });
    return packed;
}

Expected<PackedMatrix> PackedMatrix::pack(CpuDevice& device, const WeightSource& source) {
    const Sources one(&source, 1);
    return pack(device, std::span<const Sources>(&one, 1));
}

}  // namespace espalier::linalg
