// SPDX-License-Identifier: Apache-2.0
// The second half of Stepper::step(): what the model computed becomes moved KV, committed tokens,
// ended requests and updates.
#include <algorithm>
#include <utility>

#include "base/at.hpp"
#include "base/check.hpp"
#include "engine/stepper.hpp"

namespace espalier::engine {

using schedule::Outcome;

namespace {

// Why the request ended, where neither a stop condition nor its numbers ended it.
Interruption interruption_of(const LiveRequest& request, const schedule::Ended& ended) {
    if (request.progress.finish()->reason != accept::FinishReason::interrupted)
        return Interruption::none;
    if (request.interruption != Interruption::none) return request.interruption;
    return ended.reason == schedule::EndReason::expired ? Interruption::deadline
                                                        : Interruption::cancelled;
}

// Drafts of a verified tree, by whom they are counted to. path: nodes that were visited.
void count_origins(std::span<const DraftOrigin> origins, std::span<const std::int32_t> path,
                   StepCounts& counts) {
    for (std::size_t node = 1; node < origins.size(); ++node)
        if (origins[node].drafted()) ++counts.drafted_from[origins[node].drafter];
    for (const std::int32_t node : path.subspan(1)) {
        const DraftOrigin& origin = at(origins, node);
        if (origin.drafted()) ++counts.accepted_from[origin.drafter];
    }
}

VerifiedTree verified_tree(const accept::TreeView& tree, std::span<const std::int32_t> path) {
    return {.tokens = {tree.tokens.begin(), tree.tokens.end()},
            .parents = {tree.parents.begin(), tree.parents.end()},
            .origins = {tree.origins.begin(), tree.origins.end()},
            .path = {path.begin(), path.end()}};
}

}  // namespace

// Bit i: token i of the planned request had a latent that was not finite. Of a chunk, bit 0 stands
// for all: each of its tokens is an ancestor of what is drawn at its end.
std::uint64_t Stepper::flagged_tokens(const schedule::PlannedRequest& planned) const {
    std::uint64_t flags = 0;
    for (std::int32_t r = planned.first_row; r < planned.first_row + planned.rows; ++r) {
        const auto row = static_cast<std::size_t>(r);
        const auto first = static_cast<std::size_t>(batch_.first_token(row));
        const auto count = static_cast<std::size_t>(plan_->rows[row].q_len);
        for (std::size_t i = 0; i < count; ++i)
            if (result_.nonfinite[first + i] != 0)
                flags |= std::uint64_t{1} << (planned.decodes() ? i : 0);
    }
    return flags;
}

accept::NodeDraws Stepper::node_draws(PlanIndex index) const {
    accept::NodeDraws draws = draws_.nodes_of(index);
    draws.flagged_nodes = flagged_tokens(plan_->request(index));
    return draws;
}

// Walks what was drawn for one request, and says what the scheduler is to make of it.
void Stepper::settle(PlanIndex index) {
    const schedule::PlannedRequest& planned = plan_->request(index);
    LiveRequest& request = live(planned.id);
    walks_[index] = {};
    if (!planned.decodes()) settle_prompt(index, request, flagged_tokens(planned) != 0);
    if (!planned.draws() || outcomes_[index].end != Outcome::End::none) return;
    if (request.progress.tokens_left() == 0) {  // max_tokens 0: only the prompt was wanted
        request.progress.end(accept::FinishReason::length, request.emission);
        outcomes_[index].end = Outcome::End::finished;
        return;
    }

    if (request.constraint && !request.constraint->failure().empty())
        return fail_grammar(index, request);

    walks_[index] = accept::walk(batch_.tree_view(index), node_draws(index), request.progress,
                                 request.emission);
    outcomes_[index].committed = walks_[index].tokens.values();
    if (request.constraint && !follow_walk(index, request) && !walks_[index].finish)
        return fail_grammar(index, request);
    if (request.group->report_trees && batch_.tree(index).size() > 1) {
        const VerifiedTree tree =
            verified_tree(batch_.tree_view(index), walks_[index].path.values());
        append_trees(request.trees, std::span(&tree, 1));
    }
    if (!walks_[index].finish) return;
    const accept::FinishReason reason = walks_[index].finish->reason;
    const bool failed =
        reason == accept::FinishReason::bad_numbers || reason == accept::FinishReason::nothing_left;
    outcomes_[index].end = failed ? Outcome::End::failed : Outcome::End::finished;
}

// The constraint goes on to the end of what was committed. False: it refuses a token that was drawn
// under its own mask, an error of its program; an output that has ended with it has ended.
bool Stepper::follow_walk(PlanIndex index, LiveRequest& request) {
    for (const std::int32_t token : walks_[index].tokens.values())
        if (!request.constraint->commit(token)) return false;
    request.progress.count_reasoning(request.constraint->reasoning_tokens());
    return true;
}

void Stepper::fail_grammar(PlanIndex index, LiveRequest& request) {
    request.interruption = Interruption::grammar_failed;
    request.message = request.constraint->failure();
    fail_request(index, request, accept::FinishReason::interrupted);
}

// A chunk: its prompt's logprobs, and its failure where nothing is drawn at its end.
void Stepper::settle_prompt(PlanIndex index, LiveRequest& request, bool flagged) {
    const StepDraws::PromptPart part = draws_.prompt(index);
    if (part.bad || flagged) return fail_request(index, request, accept::FinishReason::bad_numbers);
    std::optional<accept::PromptLogprobs>& known = request.group->prompt_logprobs;
    if (!known || part.logprobs.empty()) return;
    // Tokens that a preempted request computes again beyond its prompt are output, and known.
    const std::int64_t last = scheduler_->prompt_tokens(request.id.slot) - 1;
    const auto count = static_cast<std::size_t>(std::clamp<std::int64_t>(
        last - part.first_position, 0, static_cast<std::int64_t>(part.logprobs.size())));
    known->add(part.first_position, part.logprobs.first(count),
               part.top.first(count * static_cast<std::size_t>(known->top_count())));
}

void Stepper::fail_request(PlanIndex index, LiveRequest& request, accept::FinishReason reason) {
    request.progress.end(reason, request.emission);
    outcomes_[index].committed = {};
    outcomes_[index].end = Outcome::End::failed;
}

// The model refused the batch, or the cache a move. No token of the step has been committed yet:
// those that took part in it end where they stood before it, and others go on.
void Stepper::fail_step(const std::string& message) {
    for (const PlanIndex i : plan_->request_indices()) {
        LiveRequest& request = live(plan_->request(i).id);
        walks_[i] = {};
        request.interruption = Interruption::step_failed;
        request.message = message;
        fail_request(i, request, accept::FinishReason::interrupted);
    }
}

// Names the tokens of this step that stay: drafters with layers of their own compute theirs now.
void Stepper::extend_drafters() {
    extensions_.clear();
    extension_tokens_.clear();
    extension_taps_.clear();
    extension_tokens_.reserve(static_cast<std::size_t>(plan_->tokens.total()));
    extension_taps_.reserve(static_cast<std::size_t>(plan_->tokens.total()));
    for (const PlanIndex i : plan_->request_indices()) {
        const schedule::PlannedRequest& planned = plan_->request(i);
        if (outcomes_[i].end == Outcome::End::failed) continue;
        const std::span<const std::int32_t> path = walks_[i].path.values();
        for (std::int32_t r = planned.first_row; r < planned.first_row + planned.rows; ++r) {
            const schedule::PlannedRow& row = plan_->rows[static_cast<std::size_t>(r)];
            const std::int64_t first = batch_.first_token(static_cast<std::size_t>(r));
            const auto tokens = planned.decodes() ? batch_.tree(i).tokens() : row.tokens;
            const std::size_t count = planned.decodes() ? path.size() : tokens.size();
            const std::size_t begin = extension_tokens_.size();
            for (std::size_t k = 0; k < count; ++k) {
                const std::size_t index = planned.decodes() ? static_cast<std::size_t>(path[k]) : k;
                extension_tokens_.push_back(tokens[index]);
                extension_taps_.push_back(static_cast<std::int32_t>(first) +
                                          static_cast<std::int32_t>(index));
            }
            extensions_.push_back({.request = planned.id.slot,
                                   .first_position = row.first_position,
                                   .tokens = std::span(extension_tokens_).subspan(begin, count),
                                   .taps = std::span(extension_taps_).subspan(begin, count),
                                   .block_table = row.block_table});
        }
    }
    speculation_.extend(extensions_);
}

// Drawn paths move to consecutive slots, in all layers, before anything of the step counts. A walk
// that ends before its path does leaves slots behind that are never read.
Expected<void> Stepper::move_paths() {
    moves_.clear();
    for (const PlanIndex i : plan_->request_indices()) {
        const schedule::PlannedRequest& planned = plan_->request(i);
        if (!planned.decodes()) continue;
        const schedule::PlannedRow& row = plan_->rows_of(planned).front();
        const accept::NodeList path = accept::drawn_path(batch_.tree_view(i), node_draws(i));
        moves_.add(row.block_table, row.first_position, path.values());
    }
    if (moves_.source().empty()) return {};
    return parts_.target->compact(moves_.source(), moves_.destination());
}

void Stepper::learn(StepReport& report) {
    report.moved = static_cast<std::int64_t>(moves_.source().size());
    for (const PlanIndex i : plan_->request_indices()) {
        report.failed += outcomes_[i].end == Outcome::End::failed ? 1 : 0;
        report.committed += static_cast<std::int64_t>(outcomes_[i].committed.size());
        if (!plan_->request(i).decodes() || walks_[i].path.values().empty()) continue;
        const std::size_t accepted = walks_[i].path.values().size() - 1;
        report.accepted += static_cast<std::int64_t>(accepted);
        for (std::size_t depth = 1; depth <= accepted; ++depth) ++report.accepted_at_depth[depth];
        count_origins(batch_.tree_view(i).origins, walks_[i].path.values(), report);
        speculation_.learn(plan_->request(i).id.slot, walks_[i].tokens.values());
    }
}

// After advance: the ended ones out, new tokens to the drafters, updates to the receivers.
void Stepper::emit() {
    for (const schedule::PlannedRequest& planned : plan_->requests) {
        LiveRequest& request = live(planned.id);
        if (request.progress.usage().completion_tokens > 0 && !request.times.first_token)
            request.times.first_token = now_;
    }
    finish_ended();
    for (const schedule::PlannedRequest& planned : plan_->requests)
        if (lives(planned.id)) undelivered_.push_back(planned.id);
    if (speculation_.reads()) {
        texts_.clear();
        for (const schedule::RequestId& id : undelivered_)
            texts_.push_back({id.slot, scheduler_->tokens(id.slot)});
        speculation_.read(texts_);
    }
    if (!parts_.target->info().asynchronous) deliver();
}

// Beside the next step where that runs on a device, since it does not depend on this: with 128
// requests the GPU waited 30 µs for it. A request that has ended meanwhile has got all with its
// end.
void Stepper::deliver() {
    for (const schedule::RequestId& id : undelivered_) {
        if (!lives(id)) continue;
        LiveRequest& request = live(id);
        const bool updated = !request.emission.tokens.empty() || !request.emission.text.empty();
        const bool prompt_known = request.group->prompt_logprobs &&
                                  request.group->prompt_logprobs->complete() &&
                                  !request.group->prompt_logprobs_sent;
        if (updated || prompt_known) send(request, std::nullopt);
    }
    undelivered_.clear();
}

void Stepper::send(LiveRequest& request, std::optional<Ending> ending) {
    RequestGroup& group = *request.group;
    const accept::PromptLogprobs* prompt = nullptr;
    if (group.prompt_logprobs && group.prompt_logprobs->complete() && !group.prompt_logprobs_sent) {
        prompt = &*group.prompt_logprobs;
        group.prompt_logprobs_sent = true;
    }
    if (ending) {
        request.times.ended = now_;
        ends_.add(ending->finish, ending->interruption);
    }
    group.receiver->receive({.choice = request.choice,
                             .emission = request.emission,
                             .prompt_logprobs = prompt,
                             .usage = request.progress.usage(),
                             .times = request.times,
                             .cached_tokens = request.cached_tokens,
                             .trees = request.trees,
                             .ending = ending});
    request.emission.clear();
    request.trees.clear();
}

void Stepper::finish_ended() {
    if (scheduler_->ended().empty()) return;
    for (const schedule::Ended& ended : scheduler_->ended()) {
        LiveRequest& request = live(ended.id);
        if (!request.progress.finish())
            request.progress.end(accept::FinishReason::interrupted, request.emission);
        const Ending ending{*request.progress.finish(), interruption_of(request, ended),
                            request.message};
        send(request, ending);
        if (parts_.observer != nullptr)
            parts_.observer->ended(ended.id, ending, request.progress.usage());
        if (request.planned) speculation_.end(ended.id.slot);
        live_[ended.id.slot].reset();
    }
    scheduler_->forget_ended();
}

}  // namespace espalier::engine
