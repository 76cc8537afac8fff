// SPDX-License-Identifier: Apache-2.0
#include "schedule/referee.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::schedule {
namespace {

constexpr std::int64_t kPage = cache::kPageTokens;

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
    state = (state ^ value) * 0x9e3779b97f4a7c15ull;
    return state ^ (state >> 29);
}

const cache::PageTable* table_of(const State& state) {
    if (const auto* prompt = std::get_if<Prefilling>(&state)) return &prompt->pages;
    if (const auto* running = std::get_if<Running>(&state)) return &running->pages;
    if (const auto* leaving = std::get_if<Leaving>(&state)) return &leaving->pages;
    return nullptr;
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
    const auto ids = scheduler_.submit(request);
    if (!ids) return {};
    CHECK(std::ssize(*ids) == request.choices, "{} ids", ids->size());
    std::int64_t ahead = 0;
    for (const auto& [order, serial] : live_)
        if (order.priority <= request.priority) ahead += work_bound(books_.at(serial));
    for (const RequestId id : *ids) {
        Book book;
        book.id = id;
        book.request = request;
        book.group = ids->front().serial;
        if (scheduler_.options().prefill_segment != 0)
            book.turn = 256 * ((std::ssize(request.prompt) - 1) / 256);
        for (const std::int32_t token : request.prompt) push(book, token);
        book.submitted_step = step_;
        ahead += work_bound(book);
        book.step_bound = ahead;
        for (const auto& [order, serial] : live_)
            CHECK(books_.at(serial).id.slot != id.slot, "slot {} is used twice", id.slot);
        live_[book.order()] = id.serial;
        CHECK(books_.emplace(id.serial, std::move(book)).second, "serial {} again", id.serial);
    }
    return *ids;
}

// As first in order a request is never preempted, and each step gives it a chunk or a token.
// Choices may also wait for one sibling that computes the same prompt.
std::int64_t Referee::work_bound(const Book& book) const {
    const SchedulerOptions& options = scheduler_.options();
    const std::int64_t tokens = std::ssize(book.request.prompt) + book.request.max_tokens;
    const std::int64_t chunk =
        book.request.prompt_logits
            ? std::min(options.prompt_quantum, options.max_step_gather - options.max_rows + 1)
            : options.prompt_quantum;
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
        if (table_of(scheduler_.state(books_.at(serial).id.slot)) != nullptr)
            resident_before_.insert(serial);
    }
}

void Referee::offer(Time now) {
    note_before();
    const NodeOffers& offers = scheduler_.offer_nodes(now);
    for (const Ended& ended : scheduler_.ended()) {  // expired in there: no longer first
        const auto found = live_.find(books_.at(ended.id.serial).order());
        if (found == live_.end()) continue;
        CHECK(books_.at(ended.id.serial).request.deadline <= now, "ended too early");
        expected_[ended.id.serial] = EndReason::expired;
        live_.erase(found);
    }
    left_meanwhile_ = false;
    head_ = live_.empty() ? -1 : live_.begin()->second;
    wanted_drafts_.clear();
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
        left -= wanted;
    }
}

bool Referee::plan() {
    plan_ = &scheduler_.next_plan(wanted_drafts_);
    scheduler_.audit();
    count_page_users();
    check_budget(*plan_);
    check_preempted();
    planned_.clear();
    for (const PlannedRequest& share : plan_->requests) {
        planned_.insert(share.id.serial);
        check_share(share);
    }
    check_order();
    check_progress(*plan_);
    if (!left_meanwhile_) check_quantum();
    return !plan_->empty();
}

void Referee::count_page_users() {
    page_users_.clear();
    for (const auto& [order, serial] : live_) {
        const auto* table = table_of(scheduler_.state(books_.at(serial).id.slot));
        if (table == nullptr) continue;
        for (const std::int32_t page : table->block_table()) ++page_users_[page];
    }
}

void Referee::check_budget(const Plan& plan) const {
    const SchedulerOptions& options = scheduler_.options();
    std::int64_t tokens = 0, gather = 0, absorbed = 0;
    for (const PlannedRow& row : plan.rows) {
        CHECK(row.q_len >= 1, "a row of {} tokens", row.q_len);
        tokens += row.q_len;
        gather += row.gather_count();
        absorbed += row.form == cache::Form::absorbed ? 1 : 0;
    }
    CHECK(tokens <= options.max_step_tokens, "{} tokens", tokens);
    CHECK(gather <= options.max_step_gather, "{} rows of logits", gather);
    CHECK(std::ssize(plan.requests) <= options.max_rows, "{} requests", plan.requests.size());
    CHECK(absorbed <= options.max_rows, "{} absorbed rows", absorbed);
    CHECK(plan.tokens.total() == tokens && plan.tokens.gathered == gather, "{} tokens counted",
          plan.tokens.total());
}

// Who lost its pages came, in order, behind everybody who kept them.
void Referee::check_preempted() const {
    for (const std::int64_t victim : resident_before_) {
        const Book& book = books_.at(victim);
        if (live_.count(book.order()) == 0) continue;
        if (scheduler_.preemptions(book.id.slot) == book.preemptions) continue;
        for (const std::int64_t other : resident_before_) {
            const Book& kept = books_.at(other);
            if (live_.count(kept.order()) == 0) continue;
            if (scheduler_.preemptions(kept.id.slot) != kept.preemptions) continue;
            CHECK(kept.order() < book.order(), "{} was preempted before {}", victim, other);
        }
    }
}

void Referee::check_share(const PlannedRequest& share) {
    Book& book = books_.at(share.id.serial);
    CHECK(live_.count(book.order()) == 1, "{} has ended and is planned", share.id.serial);
    CHECK(share.id == book.id, "slot {} for {}", share.id.slot, book.id.slot);
    const std::int64_t preemptions = scheduler_.preemptions(book.id.slot);
    if (preemptions != book.preemptions) book.resident = false;
    book.preemptions = preemptions;
    const PlannedRow& row = plan_->rows[static_cast<std::size_t>(share.first_row)];
    if (!book.resident) {  // what a lookup may skip: whole pages, with one token left
        CHECK(!share.runs, "{} runs without its prompt", share.id.serial);
        CHECK(row.first_position % kPage == 0 &&
                  row.first_position <= (book.length() - 1) / kPage * kPage,
              "{} begins at {} of {}", share.id.serial, row.first_position, book.length());
        book.written = row.first_position;
        book.resident = true;
    }
    if (share.runs)
        check_root(book, row, share);
    else
        check_chunk(book, share);
}

void Referee::check_root(const Book& book, const PlannedRow& row, const PlannedRequest& share) {
    CHECK(book.written == book.length() - 1, "{} has written {}", book.id.serial, book.written);
    CHECK(share.rows == 1 && share.draws && row.q_len == 1 + share.drafts,
          "{} tokens for {} drafts", row.q_len, share.drafts);
    CHECK(row.first_position == book.written, "root at {}", row.first_position);
    CHECK(row.form == cache::Form::absorbed, "a root is absorbed");
    CHECK(row.tokens.size() == 1 && row.tokens[0] == book.tokens.back(), "another root");
    CHECK(row.gather == Gather::nodes && row.gather_count() == row.q_len, "nodes without logits");
    CHECK(
        row.first_position + row.q_len < std::ssize(book.request.prompt) + book.request.max_tokens,
        "the window ends at {}", row.first_position + row.q_len);
    check_history(book, row, row.first_position);
    check_writable(book, row);
}

void Referee::check_chunk(Book& book, const PlannedRequest& share) {
    CHECK(share.rows == 1 || share.rows == 2, "{} rows", share.rows);
    std::int64_t next = book.written;
    for (std::int32_t i = 0; i < share.rows; ++i) {
        const PlannedRow& row = plan_->rows[static_cast<std::size_t>(share.first_row + i)];
        CHECK(row.slot == book.id.slot && row.first_position == next, "{} follows {}",
              row.first_position, next);
        const bool decompressed = row.form == cache::Form::decompressed;
        const std::int64_t end = next + row.q_len;
        CHECK(decompressed ? end <= book.turn : next >= book.turn, "[{}, {}) and {}", next, end,
              book.turn);
        CHECK(std::equal(row.tokens.begin(), row.tokens.end(), book.tokens.begin() + next,
                         book.tokens.begin() + end),
              "other tokens at {}", next);
        check_gather(book, row);
        check_history(book, row, book.written);
        check_writable(book, row);
        next = end;
    }
    CHECK(share.draws == (next == book.length()), "draws at {} of {}", next, book.length());
    const std::int64_t rest = book.length() - book.written;
    const bool logits = logits_done_[book.group] < std::ssize(book.request.prompt);
    if (!book.request.prompt_logits || !logits)
        CHECK(next - book.written >= std::min(scheduler_.options().prompt_quantum, rest),
              "a chunk of {} with {} left", next - book.written, rest);
}

void Referee::check_gather(const Book& book, const PlannedRow& row) {
    const std::int64_t end = row.first_position + row.q_len;
    const std::int64_t done = logits_done_[book.group];
    if (book.request.prompt_logits && done < std::ssize(book.request.prompt) && end > done) {
        CHECK(row.gather == Gather::prompt, "no logits for [{}, {})", row.first_position, end);
        CHECK(row.first_position + row.gather_first == std::max(done, row.first_position),
              "logits from {} on, known up to {}", row.first_position + row.gather_first, done);
    } else if (end == book.length()) {
        CHECK(row.gather == Gather::last && row.gather_first == row.q_len - 1, "no last logits");
    } else {
        CHECK(row.gather == Gather::none, "logits inside a prompt");
    }
}

void Referee::check_history(const Book& book, const PlannedRow& row, std::int64_t end) const {
    for (std::int64_t p = 0; p < end; ++p) {
        const std::int64_t page = row.block_table[static_cast<std::size_t>(p / kPage)];
        CHECK(stored_[static_cast<std::size_t>(page * kPage + p % kPage)] ==
                  book.latents[static_cast<std::size_t>(p)],
              "request {}: position {} is not what it reads", book.id.serial, p);
    }
}

// The whole window has pages, and nobody else can see them.
void Referee::check_writable(const Book& book, const PlannedRow& row) const {
    const cache::PageTable& table = *table_of(scheduler_.state(book.id.slot));
    CHECK(row.block_table.data() == table.block_table().data(), "another block table");
    const std::int64_t end = row.first_position + row.q_len;
    CHECK(table.slots() >= end, "{} slots reserved for {}", table.slots(), end);
    CHECK(row.first_position >= table.published_pages() * kPage, "writes a published page");
    for (std::int64_t index = row.first_position / kPage; index * kPage < end; ++index) {
        const std::int32_t page = row.block_table[static_cast<std::size_t>(index)];
        CHECK(page > 0 && page < scheduler_.options().page_count, "page {}", page);
        CHECK(page_users_.at(page) == 1, "page {} is written by one of {}", page,
              page_users_.at(page));
    }
}

bool Referee::sibling_leads(const Book& book) const {
    for (const auto& [order, serial] : live_) {
        const Book& other = books_.at(serial);
        if (other.group != book.group || serial == book.id.serial) continue;
        if (!std::holds_alternative<Prefilling>(scheduler_.state(other.id.slot))) continue;
        const std::int64_t prompt = std::ssize(other.request.prompt);
        const auto known = logits_done_.find(book.group);
        const bool logits =
            other.request.prompt_logits && (known == logits_done_.end() || known->second < prompt);
        if (other.written < (prompt - 1) / kPage * kPage || logits) return true;
    }
    return false;
}

// Nobody gets a row while somebody before it in order waits for more than a sibling; and only the
// last in order among running requests may be left out, for want of a page.
void Referee::check_order() const {
    const Book* passed_over = nullptr;
    bool stalled = false;
    for (const auto& [order, serial] : live_) {
        const Book& book = books_.at(serial);
        const State& state = scheduler_.state(book.id.slot);
        if (std::holds_alternative<Running>(state)) {
            CHECK(!stalled, "{} runs, one before it is left out", serial);
            stalled = planned_.count(serial) == 0;
        } else if (std::holds_alternative<Waiting>(state)) {
            if (before_.count(serial) == 1 && !sibling_leads(book) && passed_over == nullptr)
                passed_over = &book;
        } else if (resident_before_.count(serial) == 0 && before_.count(serial) == 1) {
            CHECK(passed_over == nullptr, "{} was admitted, {} passed over", serial,
                  passed_over->id.serial);
        }
    }
}

// Whoever is first in order gets something in every step, or a sibling computes its prompt.
void Referee::check_progress(const Plan& plan) const {
    if (head_ < 0 || live_.count(books_.at(head_).order()) == 0) return;
    const Book& head = books_.at(head_);
    for (const PlannedRequest& share : plan.requests) {
        if (share.id.serial == head_) return;
        const bool waits = std::holds_alternative<Waiting>(scheduler_.state(head.id.slot));
        if (waits && books_.at(share.id.serial).group == head.group && !share.runs) return;
    }
    CHECK(false, "request {} is first in order and got nothing", head_);
}

// The first prompt that does not wait for a sibling gets its quantum, unless rows or pages are with
// those before it. (Checked only when nobody left between the halves of the plan.)
void Referee::check_quantum() const {
    const SchedulerOptions& options = scheduler_.options();
    const Gauges gauges = scheduler_.gauges();
    std::int64_t running = 0, rows_before = 0;
    for (const auto& [order, serial] : live_) {
        const Book& book = books_.at(serial);
        const State& state = scheduler_.state(book.id.slot);
        rows_before += table_of(state) != nullptr || sibling_leads(book) ? 1 : 0;
        if (std::holds_alternative<Running>(state)) {
            if (planned_.count(serial) == 0) return;  // it lacks a page: prompts behind it wait
            ++running;
            continue;
        }
        if (before_.count(serial) == 0) continue;
        const auto* prompt = std::get_if<Prefilling>(&state);
        if (prompt == nullptr && sibling_leads(book)) continue;
        if (planned_.count(serial) == 1) return;
        const std::int64_t spare = gauges.pages.available();
        if (prompt != nullptr) {
            const std::int64_t chunk =
                std::min(options.prompt_quantum, book.length() - prompt->computed);
            CHECK(prompt->pages.slots() + spare * kPage < prompt->computed + chunk,
                  "{} has pages and no chunk", serial);
        } else {
            CHECK(rows_before >= options.max_rows ||
                      spare < cache::pages_for(book.length()) + running,
                  "{} could be admitted", serial);
        }
        return;
    }
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
        const PlannedRequest& share = plan_->requests[i];
        Book& book = books_.at(share.id.serial);
        const bool live = live_.count(book.order()) == 1;
        const bool fails = live && random_.chance(habits_.fail);
        const std::int64_t left =
            std::ssize(book.request.prompt) + book.request.max_tokens - book.length();
        std::int64_t accepted = 0;
        if (share.draws && !fails)
            accepted = random_.between(1, 1 + static_cast<int>(share.drafts));
        CHECK(!live || accepted <= left, "{} accepted of {} left", accepted, left);
        const std::size_t first_drawn = drawn_.size();
        for (std::int64_t n = 0; n < accepted; ++n) drawn_.push_back(random_.between(0, 1));
        for (std::int32_t r = 0; r < share.rows; ++r) {
            const PlannedRow& row = plan_->rows[static_cast<std::size_t>(share.first_row + r)];
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
            plan_->rows[static_cast<std::size_t>(share.first_row + share.rows - 1)];
        book.written = share.runs ? book.length() - 1 : last.first_position + last.q_len;
        if (share.runs)  // compaction: the accepted path lies in consecutive slots
            for (std::int64_t p = last.first_position; p < book.written; ++p)
                write(last, p, book.latents[static_cast<std::size_t>(p)]);
        if (fails) {
            outcome.end = Outcome::End::failed;
            expected_[book.id.serial] = EndReason::failed;
        } else if (share.draws && (accepted == left || random_.chance(habits_.finish))) {
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
