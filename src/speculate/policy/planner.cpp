// SPDX-License-Identifier: Apache-2.0
#include "speculate/policy/planner.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

constexpr std::size_t kLevels = ExpectedTree::kLevels;

// The shapes of a drafter's first calls: levels and tokens in other proportions each time.
constexpr std::array<DraftShape, 4> kFirstShapes = {{DraftPlanner::kFirstShape,
                                                     {.depth = 1, .width = 1, .nodes = 2},
                                                     {.depth = 2, .width = 4, .nodes = 9},
                                                     {.depth = 4, .width = 2, .nodes = 9}}};

constexpr std::int64_t kLongPrompts = 256;  // tokens
constexpr std::size_t kManyRows = 16;

// Walks down a row's expected levels beside what is there, for one width.
class Descent {
  public:
    Descent(const ExpectedTree& tree, std::size_t width, const Reach& there, double novelty)
        : tree_(tree), width_(width), there_(there), novelty_(novelty) {}

    // False: nothing to be expected deeper.
    bool next() {
        if (depth_ == static_cast<std::int32_t>(kLevels)) return false;
        const std::span<const float> level = tree_.level(width_, depth_ + 1);
        if (level.empty()) return false;
        computed_ += depth_ == 0 ? 1
                                 : std::min(ExpectedTree::kWidths[width_],
                                            static_cast<std::int32_t>(nodes_.size()));
        nodes_ = level;
        const double there = there_[static_cast<std::size_t>(depth_)];
        const double reached = tree_.reach(width_, ++depth_);
        const double own = reached / reach_before_;
        const double others = there_before_ > 0 ? there / there_before_ : 0;
        const double merged = others > 0 ? std::max(own, others + (1 - others) * novelty_) : own;
        merged_ = std::max(there, merged_ * merged);
        fresh_ = (merged_ - there) / reached;
        reach_before_ = reached;
        there_before_ = there;
        return true;
    }
    std::int32_t depth() const { return depth_; }
    std::span<const float> nodes() const { return nodes_; }  // of the level
    std::int32_t computed() const { return computed_; }      // by the drafter's passes
    double fresh() const { return fresh_; }  // the part of its survival that is not there yet

  private:
    const ExpectedTree& tree_;
    std::size_t width_;
    const Reach& there_;
    double novelty_;
    std::span<const float> nodes_;
    std::int32_t depth_ = 0, computed_ = 0;
    double reach_before_ = 1, there_before_ = 1, merged_ = 1, fresh_ = 0;
};

}  // namespace

void DraftPlanner::set_rate(const PlanQuestion& q, Outlook& outlook) {
    outlook.rate =
        outlook.tokens / (q.target.seconds({.rows = q.load.size.rows,
                                            .tokens = q.load.size.tokens + outlook.drafts,
                                            .keys = q.load.size.keys + outlook.keys}) +
                          outlook.draft_seconds - q.load.prompt_seconds);
}

const ExpectedTree& DraftPlanner::tree(const PlanQuestion& q, DrafterId drafter,
                                       const PlanRow& row) {
    const double steps = static_cast<double>(kBiasSteps - 1) / RequestBias::kLargest;
    const auto bias = static_cast<std::size_t>(std::lround(row.bias->factor(drafter) * steps));
    Cached& cached = trees_.at(drafter)[row.coupled ? 1 : 0].at(bias);
    if (cached.made < 0 || plans_ - cached.made >= kTreeAge) {
        cached.tree =
            ExpectedTree(q.table, drafter, row.coupled, static_cast<double>(bias) / steps);
        cached.made = plans_;
    }
    return cached.tree;
}

// State without any of the drafters in question.
void DraftPlanner::start(const PlanQuestion& q) {
    without_.outlook = {.tokens = q.load.expected_tokens, .draft_seconds = q.load.draft_seconds};
    without_.reach.clear();
    without_.drafts.clear();
    for (const PlanRow& row : q.rows) {
        for (const float reach : row.reach) without_.outlook.tokens += reach;
        without_.outlook.drafts += row.drafts;
        without_.outlook.keys += row.keys * row.drafts;
        without_.reach.push_back(row.reach);
        without_.drafts.push_back(row.drafts);
    }
    set_rate(q, without_.outlook);
}

// The best (width, depth) of a row for each depth that all may have.
void DraftPlanner::weigh_row(const PlanQuestion& q, DrafterId drafter, std::size_t row,
                             const Standing& before, const Price& price) {
    const PlanRow& asked = q.rows[row];
    const ExpectedTree& expected = tree(q, drafter, asked);
    const double verify = price.rate * (price.token_seconds + price.key_seconds * asked.keys);
    const double compute = price.rate * q.times[drafter]->per_token();
    const double novelty = q.table.novelty(drafter);
    const std::int64_t share = q.load.max_drafts / static_cast<std::int64_t>(q.rows.size());
    const std::int64_t room = std::min<std::int64_t>(asked.max_drafts, share) - before.drafts[row];
    Gain* gains = gains_.data() + row * kLevels;
    std::fill(gains, gains + kLevels, Gain{});
    if (asked.unable.at(drafter)) return;
    for (std::size_t width = 0; width < ExpectedTree::kWidths.size(); ++width) {
        Descent descent(expected, width, before.reach[row], novelty);
        Gain sum;
        while (descent.next()) {
            for (const float survival : descent.nodes()) {
                const double worth = descent.fresh() * survival - verify;
                if (worth <= 0 || sum.drafts >= room) break;
                sum.value += worth;
                sum.tokens += descent.fresh() * survival;
                ++sum.drafts;
            }
            Gain gain = sum;
            gain.computed = descent.computed();
            gain.value -= compute * gain.computed;
            gain.width = static_cast<std::int8_t>(width);
            gain.depth = static_cast<std::int8_t>(descent.depth());
            Gain& best = gains[descent.depth() - 1];
            if (gain.value > best.value) best = gain;
        }
    }
    for (std::size_t depth = 1; depth < kLevels; ++depth)
        if (gains[depth].value < gains[depth - 1].value) gains[depth] = gains[depth - 1];
}

// The best plan at a price: all rows share the cost of a level.
void DraftPlanner::add_at(const PlanQuestion& q, DrafterId drafter, const Standing& before,
                          const Price& price, Addition& out) {
    gains_.resize(q.rows.size() * kLevels);
    for (std::size_t row = 0; row < q.rows.size(); ++row) weigh_row(q, drafter, row, before, price);
    std::size_t levels = 0;
    double best = 0;
    for (std::size_t depth = 1; depth <= kLevels; ++depth) {
        double value = -price.rate * static_cast<double>(depth) * q.times[drafter]->per_level();
        for (std::size_t row = 0; row < q.rows.size(); ++row)
            value += gains_[row * kLevels + depth - 1].value;
        if (value <= best) continue;
        best = value;
        levels = depth;
    }
    out.outlook = before.outlook;
    out.rows.assign(q.rows.size(), {});
    if (levels == 0) return;
    std::int32_t passes = 0;
    std::int64_t computed = 0;
    for (std::size_t row = 0; row < q.rows.size(); ++row) {
        const Gain& gain = gains_[row * kLevels + levels - 1];
        if (gain.depth == 0) continue;
        out.rows[row] = gain;
        out.outlook.tokens += gain.tokens;
        out.outlook.drafts += gain.drafts;
        out.outlook.keys += q.rows[row].keys * gain.drafts;
        passes = std::max<std::int32_t>(passes, gain.depth);
        computed += gain.computed;
    }
    out.outlook.draft_seconds += q.times[drafter]->seconds(passes, computed);
    set_rate(q, out.outlook);
}

// The best plan with this drafter beside what is there; its rate is 0 if it should not be asked.
void DraftPlanner::add(const PlanQuestion& q, DrafterId drafter, const Standing& before,
                       Addition& out) {
    const auto seconds = [&](std::int64_t drafts, double keys) {
        return q.target.seconds({.rows = q.load.size.rows,
                                 .tokens = q.load.size.tokens + drafts,
                                 .keys = q.load.size.keys + before.outlook.keys + keys});
    };
    const std::int64_t first = before.outlook.drafts;
    const auto rows = static_cast<std::int64_t>(q.rows.size());
    out.outlook.rate = 0;
    const auto round = [&](std::int64_t nodes) {
        const Price price = {.rate = std::max(before.outlook.rate, out.outlook.rate),
                             .token_seconds = (seconds(first + nodes, 0) - seconds(first, 0)) /
                                              static_cast<double>(nodes),
                             .key_seconds = seconds(first, 1) - seconds(first, 0)};
        add_at(q, drafter, before, price, trial_);
        if (trial_.outlook.drafts > first && trial_.outlook.rate > out.outlook.rate)
            std::swap(trial_, out);
    };
    // The cost of a node depends on their number, least so where many rows share a step: there
    // one guess is as good as four, and planning for 32 rows takes less than half the time.
    constexpr std::int64_t kFewRows = 8;
    if (rows > kFewRows)
        round(3 * rows);
    else
        for (const std::int64_t nodes : {1, 3, 7, 15}) round(nodes * rows);
    if (out.outlook.rate > 0) round(std::max<std::int64_t>(out.outlook.drafts - first, 1));
}

void DraftPlanner::keep(const PlanQuestion& q, DrafterId drafter, const Addition& addition) {
    for (std::size_t row = 0; row < q.rows.size(); ++row) {
        const Gain& chosen = addition.rows[row];
        if (chosen.depth == 0) continue;
        const std::int32_t width = ExpectedTree::kWidths[static_cast<std::size_t>(chosen.width)];
        shapes_[drafter][row] =
            within({.depth = chosen.depth,
                    .width = width,
                    .nodes = std::min(1 + ExpectedTree::kKept * chosen.depth, kMaxNodes)},
                   q.rows[row].max_drafts);
    }
}

// The same of all rows.
void DraftPlanner::ask(const PlanQuestion& q, DrafterId drafter, const DraftShape& shape) {
    for (std::size_t row = 0; row < q.rows.size(); ++row)
        if (!q.rows[row].unable.at(drafter))
            shapes_[drafter][row] = within(shape, q.rows[row].max_drafts);
}

// A drafter whose cost is hardly known is asked for its first shapes, unless what it took so far
// says that the next would take as long as many steps. (The first calls find memory cold.) Not
// beside long prompts: a draft model would have all their KV to write first. With many rows two of
// them must do: the others would take as long as several steps.
bool DraftPlanner::plan_first(const PlanQuestion& q, DrafterId drafter) {
    std::size_t& calls = first_calls_.at(drafter);
    if (calls == 0 && q.times[drafter]->known()) calls = kFirstShapes.size();  // remembered
    if (calls == kFirstShapes.size()) return false;
    if (q.load.size.tokens - std::ssize(q.rows) > kLongPrompts) return true;
    const DraftShape shape = kFirstShapes[calls];
    const auto rows = static_cast<std::int64_t>(q.rows.size());
    const DraftTime& time = *q.times[drafter];
    constexpr double kManySteps = 8;
    if (calls > 1 && time.seconds(shape.depth, rows * (1 + (shape.depth - 1) * shape.width)) >
                         kManySteps * q.target.seconds(q.load.size)) {
        calls = kFirstShapes.size();
        return false;
    }
    calls = q.rows.size() < kManyRows || calls == 0 ? calls + 1 : kFirstShapes.size();
    learns_ = true;
    ask(q, drafter, shape);
    return true;
}

void DraftPlanner::probe(const PlanQuestion& q, DrafterId drafter) {
    const auto rows = static_cast<std::int64_t>(q.rows.size());
    off_.at(drafter).wait(q.target.seconds(q.load.size));
    if (!off_[drafter].spend(q.times[drafter]->seconds(1, rows))) return;
    probes_[drafter] = learns_ = true;
    ask(q, drafter, kProbe);
}

void DraftPlanner::plan(const PlanQuestion& q) {
    ++plans_;
    probes_ = {};
    saves_ = {};
    learns_ = false;
    std::array<DrafterId, kMaxDrafters> known;
    std::size_t count = 0;
    for (DrafterId d = 0; d < kMaxDrafters; ++d) {
        shapes_[d].assign(q.rows.size(), kNotAsked);
        if (q.times[d] != nullptr && !q.rows.empty() && !plan_first(q, d)) known[count++] = d;
    }
    if (count == 0) return;
    start(q);
    std::optional<DrafterId> asked;
    double best = q.load.least_gain * without_.outlook.rate;
    for (std::size_t i = 0; i < count; ++i) {
        add(q, known[i], without_, considered_);
        if (!(considered_.outlook.rate > best)) continue;
        best = considered_.outlook.rate;
        asked = known[i];
        std::swap(best_, considered_);
    }
    if (asked) {
        keep(q, *asked, best_);
        saves_[*asked] = best_.outlook.tokens / without_.outlook.rate -
                         best_.outlook.tokens / best_.outlook.rate;
        off_[*asked].reset();
    }
    for (std::size_t i = 0; i < count; ++i)
        if (known[i] != asked) probe(q, known[i]);
}

}  // namespace espalier::speculate
