// SPDX-License-Identifier: Apache-2.0
#include "schedule/referee.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "schedule/inspection.hpp"

namespace espalier::schedule {
namespace {

constexpr std::int64_t kPage = cache::kPageTokens;

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
    state = (state ^ value) * 0x9e3779b97f4a7c15ull;
    return state ^ (state >> 29);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Referee::Referee(Scheduler& scheduler, std::uint64_t seed, EngineHabits habits)
    : scheduler_(scheduler),
      random_(seed),
      habits_(habits),
      stored_(static_cast<std::size_t>(scheduler.options().page_count * kPage)) {}

// ---- what clients do ----------------------------------------------------------------------------

std::vector<RequestId> Referee::submit(const Request& request) {
    if (!edge_takes(scheduler_, request)) {
        refused_ += request.choices;
        return {};
    }
    const std::vector<RequestId> ids = scheduler_.submit(request);
    CHECK(std::ssize(ids) == request.choices, "{} ids", ids.size());
    std::int64_t ahead = 0;
    for (const auto& [order, serial] : live_)
        if (order.priority <= request.priority) ahead += work_bound(books_.at(serial));
    for (const RequestId id : ids) {
        Book book;
        book.id = id;
        book.request = request;
        book.group = ids.front().serial;
        const std::int64_t prompt = std::ssize(request.prompt);
        std::int64_t segment = scheduler_.options().prefill_segment;
        if (segment != 0 && prompt > 4096) segment = 256;
        if (segment != 0 && prompt > 256) book.turn = segment * ((prompt - 1) / segment);
        if (const auto keys = scheduler_.options().decompressed_keys)
            book.turn = std::min(book.turn, *keys / 64 * 64);
        for (const std::int32_t token : request.prompt) push(book, token);
        book.submitted_step = step_;
        ahead += work_bound(book);
        book.step_bound = ahead;
        for (const auto& [order, serial] : live_)
            CHECK(books_.at(serial).id.slot != id.slot, "slot {} is used twice", id.slot.value());
        live_[book.order()] = id.serial;
        CHECK(books_.emplace(id.serial, std::move(book)).second, "serial {} again", id.serial);
    }
    return ids;
}

// A request that is first in order is never preempted, and each step gives it a chunk or a token.
// Choices may also wait for one sibling that computes the same prompt.
std::int64_t Referee::work_bound(const Book& book) const {
    const SchedulerOptions& options = scheduler_.options();
    const std::int64_t tokens = std::ssize(book.request.prompt) + book.request.max_tokens;
    std::int64_t chunk =
        book.request.prompt_logits
            ? std::min(options.prompt_quantum, options.max_step_gather - options.max_rows + 1)
            : options.prompt_quantum;
    // Half of the splits is the first prompt's.
    while (chunk > 1 && splits(chunk, tokens) > options.max_step_splits / 2) --chunk;
    const std::int64_t computing = ceil_div(tokens, chunk) * (book.request.choices > 1 ? 2 : 1);
    return computing + book.request.max_tokens + 1;
}

void Referee::cancel(RequestId id) {
    const bool was_live = reasons_.count(id.serial) == 0 && expected_.count(id.serial) == 0;
    CHECK(scheduler_.cancel(id) == was_live, "cancelling {} must say {}", id.serial, was_live);
    if (!was_live) return;
    expected_[id.serial] = EndReason::cancelled;
    left_meanwhile_ = true;
    live_.erase(books_.at(id.serial).order());
}

void Referee::push(Book& book, std::int32_t token) {
    const std::uint64_t before =
        book.latents.empty() ? mix(1, book.request.salt) : book.latents.back();
    const std::uint64_t form = book.length() < book.turn ? 2 : 1;
    book.latents.push_back(mix(before, static_cast<std::uint64_t>(token) * 4 + form));
    book.tokens.push_back(token);
}

// ---- planning -----------------------------------------------------------------------------------

void Referee::note_before() {
    before_.clear();
    resident_before_.clear();
    head_ = live_.empty() ? -1 : live_.begin()->second;
    for (const auto& [order, serial] : live_) {
        before_.insert(serial);
        if (pages_of(state_of(scheduler_, books_.at(serial).id.slot)) != nullptr)
            resident_before_.insert(serial);
    }
}

void Referee::offer(Time now) {
    note_before();
    preemptions_before_ = scheduler_.totals().preemptions;
    reserved_ = scheduler_.options().reserve_windows && random_.chance(0.8);
    const NodeOffers& offers =
        scheduler_.offer_nodes(now, reserved_ ? Windows::reserved : Windows::counted);
    for (const Ended& ended : scheduler_.ended()) {  // expired in there: no longer first
        const auto found = live_.find(books_.at(ended.id.serial).order());
        if (found == live_.end()) continue;
        CHECK(books_.at(ended.id.serial).request.deadline <= now, "ended too early");
        expected_[ended.id.serial] = EndReason::expired;
        live_.erase(found);
    }
    left_meanwhile_ = false;
    head_ = live_.empty() ? -1 : live_.begin()->second;
    check_offers(offers);
    wanted_drafts_.clear();
    offered_.clear();
    std::int64_t left = offers.max_drafts;
    for (const NodeOffer& offer : offers.rows) {
        const Book& book = books_.at(scheduler_.id(offer.slot).serial);
        const std::int64_t most =
            std::min(std::ssize(book.request.prompt) + book.request.max_tokens - book.length() - 1,
                     std::int64_t{book.request.max_drafts});
        CHECK(offer.max_drafts >= 0 && offer.max_drafts <= most, "{} drafts offered, {} may be",
              offer.max_drafts, most);
        std::int64_t wanted = 0;
        if (random_.chance(habits_.draft))
            wanted = random_.between(0, static_cast<int>(std::min<std::int64_t>(
                                            {offer.max_drafts, left, random_.between(1, 63)})));
        wanted_drafts_.push_back(static_cast<std::int32_t>(wanted));
        offered_.push_back(book.id.serial);
        left -= wanted;
    }
}

bool Referee::plan() {
    plan_ = &scheduler_.next_plan(wanted_drafts_);
    scheduler_.audit();
    count_page_users();
    check_budget(*plan_);
    check_windows_given_back();
    check_preempted();
    planned_.clear();
    for (const PlannedRequest& planned : plan_->requests) {
        planned_.insert(planned.id.serial);
        check_planned(planned);
    }
    check_order();
    check_progress(*plan_);
    if (!left_meanwhile_) check_quantum();
    return !plan_->empty();
}

// ---- running ------------------------------------------------------------------------------------

void Referee::write(const PlannedRow& row, std::int64_t position, std::uint64_t value) {
    const std::int64_t page = row.block_table[static_cast<std::size_t>(position / kPage)];
    stored_[static_cast<std::size_t>(page * kPage + position % kPage)] = value;
}

void Referee::advance(Time now) {
    ++step_;
    outcomes_.assign(plan_->requests.size(), {});
    drawn_.clear();
    drawn_.reserve(plan_->requests.size() * 64);
    for (std::size_t i = 0; i < plan_->requests.size(); ++i) {
        const PlannedRequest& planned = plan_->requests[i];
        Book& book = books_.at(planned.id.serial);
        const bool live = live_.count(book.order()) == 1;
        const bool fails = live && random_.chance(habits_.fail);
        const std::int64_t left =
            std::ssize(book.request.prompt) + book.request.max_tokens - book.length();
        std::int64_t accepted = 0;
        if (planned.draws() && !fails)
            accepted = random_.between(1, 1 + static_cast<int>(planned.drafts));
        CHECK(!live || accepted <= left, "{} accepted of {} left", accepted, left);
        const std::size_t first_drawn = drawn_.size();
        for (std::int64_t n = 0; n < accepted; ++n) drawn_.push_back(random_.between(0, 1));
        for (std::int32_t r = 0; r < planned.rows; ++r) {
            const PlannedRow& row = plan_->rows[static_cast<std::size_t>(planned.first_row + r)];
            for (std::int64_t p = row.first_position; p < row.first_position + row.q_len; ++p) {
                const bool right = !fails && p < book.length();
                write(row, p, right ? book.latents[static_cast<std::size_t>(p)] : ++noise_ | 1);
            }
            if (row.gather == Gather::prompt && live && !fails)
                logits_done_[book.group] = row.first_position + row.q_len;
        }
        Outcome& outcome = outcomes_[i];
        outcome.committed = std::span(drawn_).subspan(first_drawn);
        if (!live) continue;  // what it drew is dropped
        for (const std::int32_t token : outcome.committed) push(book, token);
        const PlannedRow& last =
            plan_->rows[static_cast<std::size_t>(planned.first_row + planned.rows - 1)];
        book.written = planned.decodes() ? book.length() - 1 : last.first_position + last.q_len;
        if (planned.decodes())  // compaction: the accepted path lies in consecutive slots
            for (std::int64_t p = last.first_position; p < book.written; ++p)
                write(last, p, book.latents[static_cast<std::size_t>(p)]);
        if (fails) {
            outcome.end = Outcome::End::failed;
            expected_[book.id.serial] = EndReason::failed;
        } else if (planned.draws() && (accepted == left || random_.chance(habits_.finish))) {
            outcome.end = Outcome::End::finished;
            expected_[book.id.serial] = EndReason::finished;
        }
    }
    scheduler_.advance(outcomes_, now);
}

void Referee::collect_ended(Time now) {
    for (const Ended& ended : scheduler_.ended()) {
        Book& book = books_.at(ended.id.serial);
        CHECK(reasons_.emplace(ended.id.serial, ended.reason).second, "{} ended twice",
              ended.id.serial);
        const auto expected = expected_.find(ended.id.serial);
        if (expected == expected_.end())
            CHECK(ended.reason == EndReason::expired && book.request.deadline <= now,
                  "{} ended for no reason", ended.id.serial);
        else
            CHECK(ended.reason == expected->second, "{} ended for another reason", ended.id.serial);
        live_.erase(book.order());
        const std::int64_t steps = step_ - book.submitted_step;
        longest_wait_ = std::max(longest_wait_, steps);
        if (book.request.priority != 0) continue;  // later ones may go first
        CHECK(steps <= book.step_bound, "{} took {} steps; its bound is {}", ended.id.serial, steps,
              book.step_bound);
        wait_to_bound_ = std::max(
            wait_to_bound_, static_cast<double>(steps) / static_cast<double>(book.step_bound));
    }
    for (const auto& [serial, reason] : expected_)
        CHECK(reasons_.count(serial) == 1, "{} should have ended", serial);
    scheduler_.forget_ended();
    for (const auto& [order, serial] : live_) {
        const auto tokens = scheduler_.tokens(books_.at(serial).id.slot);
        CHECK(std::ranges::equal(tokens, books_.at(serial).tokens), "{} has other tokens", serial);
    }
    expected_.clear();
    scheduler_.audit();
}

}  // namespace espalier::schedule
