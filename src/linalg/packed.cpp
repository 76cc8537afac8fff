// SPDX-License-Identifier: Apache-2.0
// Packing: checks the sources, then every panel is filled by its own task. Padding is the zero of a
// fresh buffer.
#include "linalg/packed.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "linalg/pack_panel.hpp"

namespace espalier::linalg {
namespace {

using Sources = std::span<const WeightSource>;

// True if all of them are finite.
bool pack_scales(const PackedView& shape, const PanelRun& run, std::byte* scales) {
    bool finite = true;
    for (std::int64_t group = 0; group < shape.scale_groups(); ++group)
        for (std::int64_t lane = 0; lane < run.lanes; ++lane) {
            const float scale = scale_of(*run.source, run.first_n + lane, group);
            const std::int64_t at = group * shape.group_numbers() * kPanel + run.lane + lane;
            finite = finite && std::isfinite(scale);
            store_element(scales, dtype_of(shape.format.scale), at, scale);
            if (!shape.format.zero_points) continue;
            const float zero = zero_of(*run.source, run.first_n + lane, group);
            finite = finite && std::isfinite(zero);
            store_element(scales, DType::f32, at + kPanel, zero);
        }
    return finite;
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

// Computed with checks before PackedView's own arithmetic is trusted.
Expected<WeightView> panels_shape(const WeightView& shape) {
    if (shape.count <= 0 || shape.n <= 0 || shape.k <= 0)
        return fail(ErrorKind::invalid, "{} weights of shape [{}, {}] cannot be packed",
                    shape.count, shape.n, shape.k);
    WeightView wanted = shape;
    wanted.layout = WeightLayout::panels;
    PackedView view(wanted);
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t lanes, checked_product(view.panels(), kPanel));
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t weights, checked_product(lanes, view.k_padded()));
    ESPALIER_RETURN_IF_ERROR(checked_product(weights, facts_of(view.format.code).bits));
    view.matrix_bytes = view.format.bytes(weights);
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t scales,
                              checked_product(lanes, view.scale_groups()));
    ESPALIER_ASSIGN_OR_RETURN(view.scale_bytes, checked_product(scales, view.scale_width()));
    ESPALIER_RETURN_IF_ERROR(checked_product(view.count, view.matrix_bytes));
    ESPALIER_RETURN_IF_ERROR(checked_product(view.count, view.scale_bytes));
    return view;
}

Expected<Weight> pack_panels(CpuDevice& device, WeightStack stack) {
    ESPALIER_ASSIGN_OR_RETURN(const WeightView common, common_shape(stack, ZeroPoints::taken));
    ESPALIER_ASSIGN_OR_RETURN(const WeightView shape, panels_shape(common));
    const PackedView view(shape);
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer data, device.allocate(static_cast<std::size_t>(view.count * view.matrix_bytes)));
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer scales, device.allocate(static_cast<std::size_t>(view.count * view.scale_bytes)));

    // About 256 KiB per task: small enough to share, large enough that a task's start does not
    // show.
    const std::int64_t panels = view.panels();
    const std::int64_t per_task =
        std::clamp<std::int64_t>((256 << 10) / view.panel_bytes(), 1, panels);
    const std::int64_t all_panels = view.count * panels;
    std::atomic<bool> nan = false, bad_scale = false;
    device.pool().run((all_panels + per_task - 1) / per_task, [&](std::int64_t task, int) {
        const std::int64_t end = std::min(all_panels, (task + 1) * per_task);
        for (std::int64_t index = task * per_task; index < end; ++index) {
            std::byte* panel = data.data() + index * view.panel_bytes();
            std::byte* panel_scales = scales.data() + index * view.panel_scale_bytes();
            for_runs(stack[static_cast<std::size_t>(index / panels)], view.n, index % panels,
                     [&](const PanelRun& run) {
                         if (holds_nan_code(run)) nan = true;
                         pack_panel_run(run, panel);
                         if (!pack_scales(view, run, panel_scales)) bad_scale = true;
                     });
        }
    });
    if (nan)
        return fail(ErrorKind::invalid, "e4m3 weights [{}, {}] with NaN among them", view.n,
                    view.k);
    if (bad_scale)
        return fail(ErrorKind::invalid, "{} weights [{}, {}] with a scale that is no finite number",
                    name_of(view.format.code), view.n, view.k);
    return Weight(std::move(data), std::move(scales), view);
}

}  // namespace espalier::linalg
