// SPDX-License-Identifier: Apache-2.0
// Parts of weights that lie packed, as ranks hold them.
#include <algorithm>
#include <cstring>

#include "linalg/packed.hpp"

namespace espalier::linalg {

WeightView StackPart::shape(const WeightView& whole) const {
    WeightView part{.format = whole.format, .count = std::ssize(matrices), .k = inputs.count};
    for (const Part& run : rows) part.n += run.count;
    return part;
}

bool in_panels(const WeightView& whole, const StackPart& part) {
    const std::int64_t unit = whole.format.scaled()
                                  ? std::max<std::int64_t>(kChunkInputs, whole.format.group_k)
                                  : kChunkInputs;
    if (part.inputs.first % unit != 0) return false;
    if (part.inputs.first + part.inputs.count != whole.k && part.inputs.count % unit != 0)
        return false;
    for (std::size_t i = 0; i < part.rows.size(); ++i) {
        if (part.rows[i].first % kPanel != 0) return false;
        if (i + 1 < part.rows.size() && part.rows[i].count % kPanel != 0) return false;
    }
    return true;
}

namespace {

// Copies of panels from the whole matrix's to the part's, with their scales.
void copy_run(const PackedView& from, const PackedView& to, const Part& run, std::int64_t first_k,
              std::int64_t to_panel, std::byte* data, std::byte* scales) {
    const std::int64_t first = run.first / kPanel;
    const std::int64_t count = divide_up(run.count, kPanel);
    const std::int64_t skipped = from.format.bytes(first_k * kPanel);
    for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(data + (to_panel + i) * to.panel_bytes(),
                    from.data + (first + i) * from.panel_bytes() + skipped,
                    static_cast<std::size_t>(to.panel_bytes()));
    if (!from.format.scaled()) return;
    const std::int64_t group = first_k / from.format.group_k * from.group_scale_bytes();
    for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(scales + (to_panel + i) * to.panel_scale_bytes(),
                    from.scales + (first + i) * from.panel_scale_bytes() + group,
                    static_cast<std::size_t>(to.panel_scale_bytes()));
}

}  // namespace

Expected<Weight> copy_panels(Device& device, const WeightView& whole, const StackPart& part) {
    CHECK(in_panels(whole, part), "a part that is no panels");
    ESPALIER_ASSIGN_OR_RETURN(const WeightView shape, panels_shape(part.shape(whole)));
    const PackedView view(shape);
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer data, device.allocate(static_cast<std::size_t>(view.count * view.matrix_bytes)));
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer scales, device.allocate(static_cast<std::size_t>(view.count * view.scale_bytes)));
    for (std::size_t i = 0; i < part.matrices.size(); ++i) {
        const PackedView from(whole.at(part.matrices[i]));
        const auto index = static_cast<std::int64_t>(i);
        std::int64_t panel = 0;
        for (const Part& run : part.rows) {
            copy_run(from, view, run, part.inputs.first, panel,
                     data.data() + index * view.matrix_bytes,
                     scales.data() + index * view.scale_bytes);
            panel += divide_up(run.count, kPanel);
        }
    }
    return Weight(std::move(data), std::move(scales), view);
}

}  // namespace espalier::linalg
