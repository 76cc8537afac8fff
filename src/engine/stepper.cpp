// SPDX-License-Identifier: Apache-2.0
#include "engine/stepper.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace espalier::engine {
namespace {

Expected<void> check_target_holds(const TargetInfo& target,
                                  const schedule::SchedulerOptions& options) {
    const auto at_most = [](const char* what, std::int64_t wanted,
                            std::int64_t limit) -> Expected<void> {
        if (wanted <= limit) return {};
        return fail(ErrorKind::exhausted, "{} is {}, but the model was set up for {}", what, wanted,
                    limit);
    };
    const model::ModelLimits& limits = target.limits;
    ESPALIER_RETURN_IF_ERROR(
        at_most("max_step_tokens", options.max_step_tokens, limits.max_tokens));
    ESPALIER_RETURN_IF_ERROR(
        at_most("max_step_gather", options.max_step_gather, limits.max_gather));
    if (limits.max_rows > 0)
        ESPALIER_RETURN_IF_ERROR(at_most("max_rows", options.max_rows, limits.max_rows));
    if (limits.max_splits > 0) {
        if (options.max_step_splits == 0)
            return fail(ErrorKind::exhausted,
                        "max_step_splits is not bounded, but the model was set up for {}",
                        limits.max_splits);
        ESPALIER_RETURN_IF_ERROR(
            at_most("max_step_splits", options.max_step_splits, limits.max_splits));
    }
    ESPALIER_RETURN_IF_ERROR(at_most("page_count", options.page_count, target.page_count));
    return at_most("max_model_len", options.max_model_len, limits.max_kv_len);
}

// The scheduler's options are in a trace; what drafters need must be among them.
Expected<void> check_windows(std::span<const std::unique_ptr<speculate::Drafter>> drafters,
                             const schedule::SchedulerOptions& options) {
    for (std::size_t id = 0; id < drafters.size(); ++id)
        if (drafters[id]->needs().draft_cache && !options.reserve_windows)
            return fail(ErrorKind::invalid,
                        "drafter {} writes KV while it drafts, but reserve_windows is off", id);
    return {};
}

}  // namespace

Expected<std::unique_ptr<Stepper>> Stepper::create(StepperParts parts,
                                                   const StepperSettings& settings) {
    ESPALIER_RETURN_IF_ERROR(check_target_holds(parts.target->info(), settings.schedule));
    ESPALIER_RETURN_IF_ERROR(check_windows(parts.drafters, settings.schedule));
    schedule::SchedulerOptions schedule = settings.schedule;
    schedule.row_splits = mla::row_splits;
    ESPALIER_ASSIGN_OR_RETURN(auto scheduler, schedule::Scheduler::create(schedule));
    const ops::SamplingCapacity sampling =
        StepDraws::capacity(settings.schedule, parts.target->info().vocabulary);
    ESPALIER_ASSIGN_OR_RETURN(auto draws, ops::SamplingBatchBuilder::create(sampling));
    ESPALIER_RETURN_IF_ERROR(parts.target->reserve(
        {.batch = step_capacity(settings.schedule), .draws = sampling, .taps = parts.taps}));
    std::unique_ptr<Stepper> stepper(
        new Stepper(std::move(parts), settings, std::move(scheduler), std::move(draws)));
    stepper->speculation_.remember(settings.memory);
    if (settings.step_time) stepper->speculation_.set_step_time(*settings.step_time);
    return stepper;
}

Stepper::Stepper(StepperParts parts, const StepperSettings& settings,
                 std::unique_ptr<schedule::Scheduler> scheduler, ops::SamplingBatchBuilder draws)
    : parts_(std::move(parts)),
      limits_{.vocabulary = parts_.target->info().vocabulary,
              .sizes = settings.schedule,
              .eos_token_ids = parts_.target->info().eos_token_ids},
      scheduler_(std::move(scheduler)),
      speculation_({.grant = settings.grant,
                    .coupling = settings.coupling,
                    .max_rows = settings.schedule.max_rows,
                    .vocabulary = limits_.vocabulary,
                    .key_cost = parts_.target->info().pair_cost.absorbed,
                    .script = parts_.script,
                    .clock = parts_.clock,
                    .without = settings.without,
                    .policy_observer = settings.policy_observer},
                   std::move(parts_.drafters)),
      batch_(settings.schedule),
      draws_(settings.schedule.max_rows, std::move(draws)),
      moves_(settings.schedule.max_step_tokens) {
    const auto rows = static_cast<std::size_t>(settings.schedule.max_rows);
    draft_rows_.reserve(rows);
    drafts_.reserve(rows);
    texts_.reserve(rows);
    undelivered_.reserve(rows);
    walks_.values().resize(rows);
    outcomes_.values().reserve(rows);
}

LiveRequest& Stepper::live(const schedule::RequestId& id) {
    CHECK(lives(id), "request {} at slot {} is not known", id.serial, id.slot.value());
    return *live_[id.slot];
}

std::vector<schedule::RequestId> Stepper::submit(CheckedRequest checked,
                                                 std::shared_ptr<Receiver> receiver,
                                                 schedule::Time arrived) {
    now_ = std::max(now_, arrived);
    Request& request = checked.request;
    const accept::OutputOptions& output = checked.rules.options();
    const auto group = std::make_shared<RequestGroup>(std::move(checked.sampling));
    group->speculate = request.speculate;
    group->drafts = checked.drafts;
    group->report_trees = request.report_trees;
    group->logprobs = request.logprobs;
    group->forced_output = request.forced_output;
    group->expected_output = request.expected_output;
    group->max_tokens = output.max_tokens;
    group->receiver = std::move(receiver);
    if (output.prompt_top_logprobs)
        group->prompt_logprobs.emplace(request.prompt, *output.prompt_top_logprobs);

    schedule::Request wanted;
    wanted.prompt = request.prompt;
    wanted.max_tokens = output.max_tokens;
    wanted.choices = request.choices;
    wanted.priority = request.priority;
    wanted.deadline = request.deadline;
    wanted.salt = request.salt;
    wanted.prompt_logits = group->prompt_logprobs && !group->prompt_logprobs->complete();
    wanted.max_drafts = !request.speculate ? 0
                        : checked.drafts   ? checked.drafts->nodes - 1
                                           : kMaxDrafts;
    const std::vector<schedule::RequestId> ids = scheduler_->submit(std::move(wanted));
    if (parts_.observer != nullptr) parts_.observer->submitted(checked, ids, parts_.clock());
    for (std::size_t choice = 0; choice < ids.size(); ++choice) {
        std::unique_ptr<LiveRequest>& live = live_.grown_to(ids[choice].slot);
        CHECK(!live, "request slot {} is taken", ids[choice].slot.value());
        live = std::make_unique<LiveRequest>(
            ids[choice], static_cast<std::int32_t>(choice), group,
            accept::RequestProgress(checked.rules, parts_.tokenizer, request.prompt));
        live->times.arrived = arrived;
        if (request.is_constrained())
            live->constraint = std::make_unique<accept::Constraint>(
                request.grammar, request.reasoning.value_or(accept::ReasoningRule{}),
                live->progress.rules().options().eos_token_ids, limits_.vocabulary);
    }
    return ids;
}

bool Stepper::cancel(schedule::RequestId id) {
    const bool was_live = scheduler_->cancel(id);
    if (was_live && parts_.observer != nullptr) parts_.observer->cancelled(id, parts_.clock());
    finish_ended();
    return was_live;
}

void Stepper::abandon(Interruption why, const std::string& message) {
    for (auto& request : live_) {
        if (!request) continue;
        accept::Finish finish =
            request->progress.finish()
                ? *request->progress.finish()
                : request->progress.end(accept::FinishReason::interrupted, request->emission);
        const bool interrupted = finish.reason == accept::FinishReason::interrupted;
        send(*request, Ending{finish, interrupted ? why : Interruption::none, message});
        request.reset();
    }
}

StepReport Stepper::step() {
    StepReport report;
    StepTimer timer(parts_.clock, report);
    now_ = report.begin;
    plan_ = &make_plan(report, timer);
    report.number = plan_->number;
    report.planning = timer.lap(Phase::plan) - report.begin;
    if (parts_.observer != nullptr) observe_trees();
    if (plan_->empty())
        deliver();
    else
        run_plan(report, timer);
    if (parts_.observer != nullptr) parts_.observer->stepped(report, scheduler_->gauges());
    return report;
}

void Stepper::run_plan(StepReport& report, StepTimer& timer) {
    report.ran = true;
    report.requests = static_cast<std::int64_t>(plan_->requests.size());
    report.tokens = plan_->tokens;
    report.draft_levels = speculation_.draft_levels();

    outcomes_.values().assign(plan_->requests.size(), {});
    Expected<void> ran = run_model(timer);
    // Nothing ran in this branch.
    deliver();
    start_drafting();
    if (ran) ran = move_paths();
    timer.lap(Phase::commit);
    if (ran) {
        for (const PlanIndex i : plan_->request_indices()) settle(i);
    } else {
        fail_step(ran.error().message);
        if (ran.error().kind == ErrorKind::io) report.device_failure = ran.error().message;
    }
    report.model = result_.times.model;
    report.sampling = result_.times.sampling;
    report.masking = report.spent(Phase::mask);
    report.drafting = report.spent(Phase::draft);
    learn(report);
    if (parts_.observer != nullptr)
        parts_.observer->walked(
            {*plan_, batch_, walks_.values(), ran ? std::string_view() : ran.error().message});
    schedule::Time now = timer.lap(Phase::walk);
    if (ran && speculation_.wants_hidden_states()) {
        extend_drafters();
        now = timer.lap(Phase::extend);
        report.drafting += report.spent(Phase::extend);
    }
    scheduler_->advance(outcomes_.values(), now);
    now_ = timer.lap(Phase::advance);
    emit();
    report.whole = timer.lap(Phase::emit) - report.begin;
    const std::int64_t prompts = report.tokens.prompt_absorbed + report.tokens.prompt_decompressed;
    if (!result_.recorded)
        report.disturbed +=
            speculation_.learn(
                {.size = step_size(report),
                 .prompts = prompts,
                 .tokens = static_cast<double>(report.tokens.roots + report.accepted),
                 .seconds = static_cast<double>(report.whole) * 1e-9,
                 .drafting = static_cast<double>(report.drafting) * 1e-9})
                ? 1
                : 0;
    speculation_.describe(report);
    if (prompts > 0) return;
    report.decode = {.steps = 1,
                     .requests = report.requests,
                     .committed = report.committed,
                     .drafts = report.tokens.drafts,
                     .draft_levels = report.draft_levels,
                     .whole = report.whole,
                     .drafting = report.drafting,
                     .masking = report.masking};
}

speculate::StepSize Stepper::step_size(const StepReport& report) const {
    return {.rows = report.requests, .tokens = report.tokens.total(), .keys = keys_of(plan_->keys)};
}

// In units of a token's arithmetic, as in speculate::StepSize.
double Stepper::keys_of(const schedule::KeyPairs& pairs) const {
    const model::PairCost& cost = parts_.target->info().pair_cost;
    return cost.absorbed * static_cast<double>(pairs.absorbed) +
           cost.decompressed * static_cast<double>(pairs.decompressed);
}

const schedule::Plan& Stepper::make_plan(StepReport& report, StepTimer& timer) {
    if (scheduler_->options().reserve_windows && !speculation_.may_write_kv())
        report.windows = schedule::Windows::counted;
    const schedule::NodeOffers& offers = scheduler_->offer_nodes(report.begin, report.windows);
    tell_lost_pages();
    timer.lap(Phase::offer);
    draft_rows_.clear();
    for (const schedule::NodeOffer& offer : offers.rows) {
        const LiveRequest& request = live(scheduler_->id(offer.slot));
        draft_rows_.push_back(
            {.request = offer.slot,
             .tokens = scheduler_->tokens(offer.slot),
             .max_drafts = offer.max_drafts,
             .block_table = offer.block_table,
             .sampling = &request.group->sampling,
             .progress = &request.progress,
             .constraint = request.constraint.get(),
             .choice = scheduler_->choice(offer.slot),
             .prescribed = request.group->drafts ? &*request.group->drafts : nullptr});
    }
    speculate::StepLoad load;
    load.size = {.rows = offers.granted_rows,
                 .tokens = offers.granted_tokens,
                 .keys = keys_of(offers.granted_keys)};
    load.expected_tokens = static_cast<double>(offers.rows.size());
    load.max_drafts = offers.max_drafts;
    drafts_.resize(draft_rows_.size());
    speculation_.choose(draft_rows_, load, drafts_);
    timer.lap(Phase::draft);
    return scheduler_->next_plan(drafts_);
}

// Drafters write KV of their own while they are asked: not to pages of requests that have expired
// or were preempted.
void Stepper::tell_lost_pages() {
    finish_ended();
    for (const schedule::RequestId& id : scheduler_->preempted())
        if (live(id).planned) speculation_.preempted(id.slot);
}

void Stepper::observe_trees() const {
    for (std::size_t i = 0; i < draft_rows_.size(); ++i) {
        const RequestSlot slot = draft_rows_[i].request;
        if (drafts_[i] > 0)
            parts_.observer->chosen(scheduler_->id(slot),
                                    speculate::Tree(speculation_.tree(slot), 1 + drafts_[i]),
                                    speculation_.origins(slot, drafts_[i]));
    }
}

// Requests in their first batch: drafters read their prompts, on a device while the model runs.
void Stepper::start_drafting() {
    for (const schedule::PlannedRequest& planned : plan_->requests) {
        LiveRequest& request = live(planned.id);
        if (request.planned) continue;
        request.planned = true;
        request.times.planned = now_;
        request.cached_tokens = scheduler_->hit_tokens(planned.id.slot);
        const auto prompt = static_cast<std::size_t>(scheduler_->prompt_tokens(planned.id.slot));
        const auto drafts = !request.group->speculate ? Speculation::Drafts::none
                            : request.group->drafts   ? Speculation::Drafts::prescribed
                                                      : Speculation::Drafts::what_pays;
        speculation_.begin(planned.id.slot, scheduler_->tokens(planned.id.slot).first(prompt),
                           request.group->max_tokens, drafts, request.group->expected_output);
    }
}

// Likewise: what drafters have missed of texts under way.
void Stepper::catch_up_drafters() {
    constexpr std::int64_t kLeastTokens = 512;  // 0.3 ms
    if (!speculation_.reads()) return;
    texts_.clear();
    for (const schedule::PlannedRequest& planned : plan_->requests)
        texts_.push_back({planned.id.slot, scheduler_->tokens(planned.id.slot)});
    speculation_.catch_up(texts_, std::max(kLeastTokens, plan_->tokens.total()));
}

Expected<void> Stepper::run_model(StepTimer& timer) {
    result_ = {};
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch batch,
                              batch_.build(*plan_, speculation_, *parts_.target));
    timer.lap(Phase::build);
    const ops::SamplingBatchBuilder& draws = ask_draws(batch.capacity.gather);
    timer.lap(Phase::mask);
    // Readers do not wait for a step that takes the host a while to queue: first tokens of 32
    // clients that begin together came 0.6 ms later.
    if (!parts_.target->is_recorded(batch.capacity)) deliver();
    ESPALIER_RETURN_IF_ERROR(parts_.target->run(batch, draws.nodes() > 0 ? &draws : nullptr));
    timer.lap(Phase::run);
    deliver();
    start_drafting();
    catch_up_drafters();
    ESPALIER_ASSIGN_OR_RETURN(result_, parts_.target->wait());
    draws_.take(result_);
    timer.lap(Phase::wait);
    return {};
}

// Grammars fill their masks here.
const ops::SamplingBatchBuilder& Stepper::ask_draws(std::int64_t gather) {
    draws_.begin(gather);
    for (const PlanIndex i : plan_->request_indices()) {
        const schedule::PlannedRequest& planned = plan_->request(i);
        const LiveRequest& request = live(planned.id);
        if (planned.decodes())
            draws_.add_tree(request, batch_.tree_view(i), batch_.tree(i).depths());
        else
            draws_.add_chunk(request, plan_->rows_of(planned), scheduler_->tokens(planned.id.slot));
    }
    return draws_.finish();
}

}  // namespace espalier::engine
