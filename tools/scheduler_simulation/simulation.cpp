// SPDX-License-Identifier: Apache-2.0
#include "simulation.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <set>
#include <unordered_map>

#include "base/check.hpp"
#include "base/random.hpp"

namespace espalier::simulation {
namespace {

using schedule::OrderKey;
using schedule::Outcome;
using schedule::Plan;
using schedule::PlannedRequest;
using schedule::Request;
using schedule::RequestId;
using schedule::Time;

constexpr std::int32_t kPriorities = 2;
constexpr double kTokenSeconds = 20e-6;  // a machine that computes 50,000 tokens a second
constexpr double kStepSeconds = 5e-3;    // and reads its weights once per step
constexpr std::int32_t kSharedPrompts = 12;

schedule::SchedulerOptions scheduler_options() {
    schedule::SchedulerOptions options;
    options.page_count = 1 + 4000;  // 256000 tokens
    options.max_model_len = 16384;
    options.max_rows = 256;
    options.max_step_tokens = 2048;
    options.max_step_gather = 2048;
    options.max_waiting = 20'000;
    options.max_waiting_tokens = std::int64_t{1} << 30;
    return options;
}

double uniform(Random& random) { return static_cast<double>(random.bits() >> 11) * 0x1p-53; }

// Pareto: most are near `least`, the mean is least·α/(α−1), and some are as long as they may be.
std::int64_t heavy_tailed(Random& random, double least, double alpha, std::int64_t most) {
    const double value = least * std::pow(1.0 - uniform(random), -1.0 / alpha);
    return std::min(static_cast<std::int64_t>(value), most);
}

struct Live {
    OrderKey order;
    RequestSlot slot;
    std::int64_t group = 0;
    std::int32_t choices = 1;
    std::int64_t tokens_left = 0;
    std::int64_t work = 0;  // steps it needs at most once it is first in order
    std::int64_t submitted_step = 0;
    std::int64_t step_bound = 0;
    std::int64_t urgent_work = 0;  // submitted by then at higher priorities
    double submitted_seconds = 0;
    bool begun = false, answered = false;
};

class Simulation {
  public:
    explicit Simulation(const SimulationOptions& options)
        : options_(options),
          random_(options.seed),
          scheduler_(schedule::Scheduler::create(scheduler_options()).value()) {
        last_begun_.fill(-1);
        result_.scheduler = scheduler_->options();
    }

    SimulationResult run() {
        while (submitted_ < options_.requests || !live_.empty()) {
            if (live_.empty()) seconds_ = std::max(seconds_, next_arrival_);
            arrive();
            cancel_some();
            step();
        }
        scheduler_->audit();
        const schedule::Gauges gauges = scheduler_->gauges();
        CHECK(scheduler_->idle() && gauges.pages.owned == 0, "{} pages leaked", gauges.pages.owned);
        result_.totals = scheduler_->totals();
        result_.simulated_seconds = seconds_;
        return std::move(result_);
    }

  private:
    Time now() const { return static_cast<Time>(seconds_ * 1e9); }

    // ---- clients ----

    Request make_request() {
        Request request;
        const std::int64_t own = heavy_tailed(random_, 60, 1.1, 8000);
        const std::int64_t shared = random_.chance(0.4) ? 600 : 0;
        const std::int32_t family = random_.between(1, kSharedPrompts);
        request.prompt.reserve(static_cast<std::size_t>(shared + own));
        for (std::int64_t i = 0; i < shared; ++i) request.prompt.push_back(family);
        for (std::int64_t i = 0; i < own; ++i)
            request.prompt.push_back(static_cast<std::int32_t>(random_.bits() & 0xffff));
        request.max_tokens = heavy_tailed(random_, 60, 1.2, 4000);
        request.priority = random_.chance(0.1) ? 0 : 1;
        request.choices = random_.chance(0.02) ? random_.between(2, 4) : 1;
        if (random_.chance(0.01)) request.deadline = now() + Time{20} * 1'000'000'000;
        return request;
    }

    void arrive() {
        while (submitted_ < options_.requests && next_arrival_ <= seconds_) {
            const Request request = make_request();
            const auto ids = scheduler_->submit(request);
            for (const RequestId id : ids) enlist(request, id, ids.front().serial);
            ++submitted_;
            const bool burst =
                submitted_ > options_.requests * 2 / 5 && submitted_ <= options_.requests * 3 / 5;
            const double rate = options_.arrivals_per_second * (burst ? 2.5 : 1);
            next_arrival_ -= std::log(1.0 - uniform(random_)) / rate;
        }
    }

    // The first request in order gets a chunk or a token in each step and is never preempted, so
    // it needs at most `work` steps; choices may wait for a sibling that computes the same prompt.
    // Whoever is first when a step is planned is an elder one, or arrived later at a higher
    // priority: the sum over these bounds the wait.
    void enlist(const Request& request, RequestId id, std::int64_t group) {
        Live live;
        live.order = {request.priority, id.serial};
        live.slot = id.slot;
        live.group = group;
        live.choices = request.choices;
        live.tokens_left = request.max_tokens;
        const std::int64_t tokens = std::ssize(request.prompt) + request.max_tokens;
        const std::int64_t chunks = tokens / scheduler_->options().prompt_quantum + 1;
        live.work = chunks * (request.choices > 1 ? 2 : 1) + request.max_tokens + 1;
        live.submitted_step = steps_;
        live.submitted_seconds = seconds_;
        const auto priority = static_cast<std::size_t>(request.priority);
        live_work_[priority] += live.work;
        for (std::size_t p = 0; p <= priority; ++p) live.step_bound += live_work_[p];
        for (std::size_t p = 0; p < priority; ++p) live.urgent_work += submitted_work_[p];
        submitted_work_[priority] += live.work;
        order_.insert(live.order);
        live_.emplace(id.serial, live);
        if (random_.chance(0.01)) to_cancel_.push_back({seconds_ + 10 * uniform(random_), id});
    }

    void cancel_some() {
        for (std::size_t i = 0; i < to_cancel_.size();) {
            if (to_cancel_[i].first > seconds_) {
                ++i;
                continue;
            }
            scheduler_->cancel(to_cancel_[i].second);
            to_cancel_[i] = to_cancel_.back();
            to_cancel_.pop_back();
        }
    }

    // ---- the engine ----

    void step() {
        using Clock = std::chrono::steady_clock;
        const std::int64_t preemptions = scheduler_->totals().preemptions;
        const auto began = Clock::now();
        const schedule::NodeOffers& offers = scheduler_->offer_nodes(now());
        const auto offered = Clock::now();
        choose_drafts(offers);
        const auto chosen = Clock::now();
        const Plan& plan = scheduler_->next_plan(drafts_);
        const auto planned = Clock::now();
        StepSample sample;
        sample.gauges = scheduler_->gauges();
        sample.tokens = plan.tokens;
        sample.preemptions = scheduler_->totals().preemptions - preemptions;
        sample.planned_requests = static_cast<std::int32_t>(plan.requests.size());
        check_plan(plan);
        Clock::duration advancing{};
        if (!plan.empty()) {
            seconds_ += kStepSeconds + kTokenSeconds * static_cast<double>(plan.tokens.total());
            ++steps_;
            draw(plan);
            const auto drawn = Clock::now();
            scheduler_->advance(outcomes_, now());
            advancing = Clock::now() - drawn;
            sample.seconds = seconds_;
            sample.plan_microseconds = std::chrono::duration<float, std::micro>(
                                           (offered - began) + (planned - chosen) + advancing)
                                           .count();
            result_.steps.push_back(sample);
        }
        collect_ended();
        if (steps_ % 4096 == 0) scheduler_->audit();
    }

    // Few rows leave room for longer trees.
    void choose_drafts(const schedule::NodeOffers& offers) {
        drafts_.assign(offers.rows.size(), 0);
        if (offers.rows.empty()) return;
        const auto each =
            static_cast<std::int32_t>(std::min<std::size_t>(7, 512 / (offers.rows.size() + 1)));
        std::int64_t left = offers.max_drafts;
        for (std::size_t i = 0; i < drafts_.size(); ++i) {
            const std::int64_t most =
                std::min<std::int64_t>({each, offers.rows[i].max_drafts, left});
            drafts_[i] = static_cast<std::int32_t>(most);
            left -= most;
        }
    }

    void draw(const Plan& plan) {
        outcomes_.assign(plan.requests.size(), {});
        tokens_.resize(64);
        for (auto& token : tokens_) token = static_cast<std::int32_t>(random_.bits() & 0xffff);
        for (std::size_t i = 0; i < outcomes_.size(); ++i) {
            const PlannedRequest& planned = plan.requests[i];
            if (!planned.draws()) continue;
            std::int64_t accepted = 1;
            while (accepted <= planned.drafts && random_.chance(0.6)) ++accepted;
            outcomes_[i].committed = std::span(tokens_).first(static_cast<std::size_t>(accepted));
            Live& live = live_.at(planned.id.serial);
            live.tokens_left -= accepted;
            if (live.tokens_left == 0) outcomes_[i].end = Outcome::End::finished;
            if (!live.answered)
                result_.first_tokens.push_back(
                    {live.submitted_seconds, static_cast<float>(seconds_ - live.submitted_seconds),
                     live.order.priority});
            live.answered = true;
        }
    }

    // ---- what must hold ----

    void check_plan(const Plan& plan) {
        const schedule::SchedulerOptions& options = scheduler_->options();
        CHECK(plan.tokens.total() <= options.max_step_tokens, "{} tokens", plan.tokens.total());
        CHECK(plan.tokens.gathered <= options.max_step_gather, "{} gathered", plan.tokens.gathered);
        const cache::PageCounts pages = scheduler_->gauges().pages;
        CHECK(pages.free + pages.owned + pages.cached == pages.total, "pages do not add up");
        drop_ended_orders();
        const Live* head = order_.empty() ? nullptr : &live_.at(order_.begin()->serial);
        bool progress = head == nullptr;
        for (const PlannedRequest& planned : plan.requests) {
            Live& live = live_.at(planned.id.serial);
            progress = progress || &live == head || live.group == head->group;
            if (live.begun || live.choices > 1) continue;
            live.begun = true;
            auto& last = last_begun_[static_cast<std::size_t>(live.order.priority)];
            CHECK(planned.id.serial > last, "{} began after {}", planned.id.serial, last);
            last = planned.id.serial;
        }
        CHECK(progress, "request {} is first in order and got nothing", head->order.serial);
    }

    void drop_ended_orders() {
        for (const schedule::Ended& ended : scheduler_->ended())
            order_.erase(live_.at(ended.id.serial).order);
    }

    void collect_ended() {
        drop_ended_orders();
        for (const schedule::Ended& ended : scheduler_->ended()) {
            const auto found = live_.find(ended.id.serial);
            const Live& live = found->second;
            const auto priority = static_cast<std::size_t>(live.order.priority);
            std::int64_t bound = live.step_bound - live.urgent_work;
            for (std::size_t p = 0; p < priority; ++p) bound += submitted_work_[p];
            const std::int64_t steps = steps_ - live.submitted_step;
            CHECK(steps <= bound, "request {} took {} steps; its bound is {}", ended.id.serial,
                  steps, bound);
            result_.longest_steps = std::max(result_.longest_steps, steps);
            result_.worst_wait_to_bound =
                std::max(result_.worst_wait_to_bound,
                         static_cast<double>(steps) / static_cast<double>(bound));
            live_work_[priority] -= live.work;
            live_.erase(found);
        }
        scheduler_->forget_ended();
    }

    SimulationOptions options_;
    Random random_;
    std::unique_ptr<schedule::Scheduler> scheduler_;
    SimulationResult result_;
    double seconds_ = 0, next_arrival_ = 0;
    std::int64_t steps_ = 0, submitted_ = 0;
    std::unordered_map<std::int64_t, Live> live_;  // by serial
    std::set<OrderKey> order_;
    std::array<std::int64_t, kPriorities> live_work_{}, submitted_work_{}, last_begun_{};
    std::vector<std::pair<double, RequestId>> to_cancel_;
    std::vector<std::int32_t> drafts_, tokens_;
    std::vector<Outcome> outcomes_;
};

}  // namespace

SimulationResult simulate(const SimulationOptions& options) { return Simulation(options).run(); }

}  // namespace espalier::simulation
