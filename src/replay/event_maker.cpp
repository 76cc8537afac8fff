// SPDX-License-Identifier: Apache-2.0
#include "replay/event_maker.hpp"

#include <utility>

#include "base/at.hpp"
#include "replay/convert.hpp"

namespace espalier::replay {
namespace {

trace::Row row_of(const schedule::PlannedRow& row, const schedule::PlannedRequest& planned,
                  const speculate::Tree* tree) {
    trace::Row out;
    out.request = planned.id.serial;
    out.first_position = row.first_position;
    out.q_len = row.q_len;
    out.form =
        row.form == cache::Form::absorbed ? trace::Form::absorbed : trace::Form::decompressed;
    out.gathered = row.gather_count();
    if (!planned.decodes()) return out;
    out.nodes = 1 + planned.drafts;
    if (tree != nullptr && !tree->is_chain()) out.mask = trace::Mask::tree;
    return out;
}

trace::Times times_of(const engine::StepReport& report) {
    using engine::Phase;
    trace::Times times = {.offer = report.spent(Phase::offer),
                          .draft = report.spent(Phase::draft),
                          .plan = report.spent(Phase::plan),
                          .build = report.spent(Phase::build),
                          .forward = report.spent(Phase::run),
                          .sample = report.spent(Phase::wait),
                          .commit = report.spent(Phase::commit),
                          .walk = report.spent(Phase::walk),
                          .advance = report.spent(Phase::advance),
                          .emit = report.spent(Phase::emit)};
    if (report.spent(Phase::mask) > 0) times.mask = report.spent(Phase::mask);
    if (report.spent(Phase::extend) > 0) times.extend = report.spent(Phase::extend);
    if (report.model > 0) times.device = {.model = report.model, .sampling = report.sampling};
    return times;
}

void clear(trace::Step& step) {
    step.rows.clear();
    step.trees.clear();
    step.outcomes.clear();
    step.ended.clear();
    step.failure.reset();
}

std::vector<std::int32_t> copy(std::span<const std::int32_t> values) {
    return {values.begin(), values.end()};
}

}  // namespace

void EventMaker::submitted(const engine::CheckedRequest& request,
                           std::span<const schedule::RequestId> ids, schedule::Time now) {
    take(submission_of(request, ids.front().serial, now), ids);
}

void EventMaker::cancelled(const schedule::RequestId& id, schedule::Time now) {
    take(trace::Cancellation{id.serial, now});
}

// A cancellation has a line of its own.
void EventMaker::ended(const schedule::RequestId& id, const engine::Ending& ending,
                       const accept::Usage& usage) {
    note_end(id);
    const trace::Ended out = ended_of(id.serial, ending, usage);
    if (out.reason != trace::Reason::cancelled) step_.ended.push_back(out);
}

void EventMaker::chosen(const schedule::RequestId& id, const speculate::Tree& tree,
                        std::span<const DraftOrigin> origins) {
    trace::Tree& out =
        step_.trees.emplace_back(trace::Tree{id.serial, copy(tree.tokens()), copy(tree.parents())});
    // The root was drawn, not drafted.
    if (!origins[1].drafted()) return;  // a prescribed tree
    for (const DraftOrigin& origin : origins) {
        const bool root = &origin == origins.data();
        out.drafters.push_back(root ? 0 : origin.drafters);
        out.from.push_back(root ? 0 : origin.drafter);
        out.ranks.push_back(root ? 0 : origin.rank);
    }
}

void EventMaker::walked(const engine::WalkedStep& step) {
    if (!step.failure.empty()) step_.failure = step.failure;
    for (const PlanIndex i : step.plan.request_indices()) {
        const schedule::PlannedRequest& planned = step.plan.request(i);
        const accept::WalkResult& walk = at(step.walks, i.value());
        for (const schedule::PlannedRow& row : step.plan.rows_of(planned))
            step_.rows.push_back(
                row_of(row, planned, step.failure.empty() ? &step.batch.tree(i) : nullptr));
        if (!step.failure.empty() || walk.path.values().empty()) continue;
        step_.outcomes.push_back(
            {planned.id.serial, copy(walk.path.values()), copy(walk.tokens.values())});
    }
}

void EventMaker::stepped(const engine::StepReport& report, const schedule::Gauges& gauges) {
    step_.number = report.number;
    step_.begin = report.begin;
    step_.unreserved = report.windows == schedule::Windows::counted;
    step_.pages = {gauges.pages.free, gauges.pages.owned, gauges.pages.cached};
    step_.queue = {gauges.waiting, gauges.waiting_tokens, gauges.prefilling, gauges.running};
    step_.times = times_of(report);
    take(step_);
    clear(step_);
}

}  // namespace espalier::replay
