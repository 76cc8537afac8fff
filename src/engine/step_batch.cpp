// SPDX-License-Identifier: Apache-2.0
#include "engine/step_batch.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::engine {

batch::StepCapacity step_capacity(const schedule::SchedulerOptions& options) {
    return {
        .absorbed_tokens = options.max_step_tokens,
        .decompressed_tokens = options.max_step_tokens,
        .absorbed_rows = options.max_rows,
        .decompressed_rows = options.max_rows,
        .gather = options.max_step_gather,
        .max_q_len = static_cast<std::int32_t>(options.max_step_tokens),
        .max_kv_len = static_cast<std::int32_t>(options.max_model_len),
        .table_rows = options.max_rows,
        .block_stride = std::min(cache::pages_for(options.max_model_len), options.page_count - 1),
        .total_splits = options.max_step_splits};
}

StepBatch::StepBatch(const schedule::SchedulerOptions& options)
    : builder_(step_capacity(options)), table_rows_(options.request_slots(), options.max_rows) {
    trees_.values().reserve(static_cast<std::size_t>(options.max_rows));
    origins_.values().resize(static_cast<std::size_t>(options.max_rows));
}

Expected<batch::HostBatch> StepBatch::build(const schedule::Plan& plan,
                                            const Speculation& speculation, const Target& target) {
    builder_.clear();
    trees_.values().clear();
    table_rows_.begin_step();
    for (const schedule::PlannedRequest& planned : plan.requests)
        table_rows_.takes_part(planned.id.slot);
    for (const schedule::PlannedRequest& planned : plan.requests) {
        const auto rows = plan.rows_of(planned);
        auto& origins = origins_.values()[trees_.values().size()];
        if (planned.decodes()) {
            std::ranges::copy(speculation.origins(planned.id.slot, planned.drafts),
                              origins.begin());
            trees_.values().emplace_back(speculation.tree(planned.id.slot), 1 + planned.drafts);
            ESPALIER_RETURN_IF_ERROR(add_tree(rows[0], trees_.values().back()));
            continue;
        }
        origins[0] = {};
        trees_.values().emplace_back(rows.back().tokens.back());
        for (const schedule::PlannedRow& row : rows) ESPALIER_RETURN_IF_ERROR(add_chunk(row));
    }
    return builder_.finish(target.padded(builder_.need()));
}

batch::RowSpec StepBatch::base(const schedule::PlannedRow& row) {
    batch::RowSpec spec;
    spec.block_table = row.block_table;
    spec.table_row = table_rows_.row_of(row.slot).value();
    spec.first_slot = static_cast<std::int32_t>(row.first_position);
    spec.form = row.form;
    spec.gather = static_cast<std::int32_t>(row.gather_count());
    return spec;
}

// A chain is causal: it needs no words, and attention no gather of its ancestors.
Expected<void> StepBatch::add_tree(const schedule::PlannedRow& row, const speculate::Tree& tree) {
    CHECK(row.q_len == tree.size() && row.tokens.front() == tree.token(0),
          "a row of {} tokens from {} on for a tree of {} from {} on", row.q_len,
          row.tokens.front(), tree.size(), tree.token(0));
    batch::RowSpec spec = base(row);
    spec.tokens = tree.tokens();
    if (!tree.is_chain()) {
        spec.mask = mla::MaskKind::tree;
        spec.depth = tree.depths();
        spec.words = tree.words();
    }
    return builder_.add(spec);
}

Expected<void> StepBatch::add_chunk(const schedule::PlannedRow& row) {
    batch::RowSpec spec = base(row);
    spec.tokens = row.tokens;
    return builder_.add(spec);
}

}  // namespace espalier::engine
