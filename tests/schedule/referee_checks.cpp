// SPDX-License-Identifier: Apache-2.0
// What the Referee holds every plan to.
#include <algorithm>

#include "base/check.hpp"
#include "schedule/inspection.hpp"
#include "schedule/referee.hpp"

namespace espalier::schedule {
namespace {

constexpr std::int64_t kPage = cache::kPageTokens;

}  // namespace

void Referee::count_page_users() {
    page_users_.clear();
    for (const auto& [order, serial] : live_) {
        const auto* table = pages_of(state_of(scheduler_, books_.at(serial).id.slot));
        if (table == nullptr) continue;
        for (const std::int32_t page : table->block_table()) ++page_users_[page];
    }
}

std::int64_t Referee::splits(std::int64_t q_len, std::int64_t kv_len) const {
    const SchedulerOptions& options = scheduler_.options();
    return options.max_step_splits == 0 || q_len == 0 ? 0 : options.row_splits(q_len, kv_len);
}

std::int64_t Referee::splits_of_chunk(const Book& book, std::int64_t first,
                                      std::int64_t end) const {
    return splits(end - std::clamp(book.turn, first, end), end);
}

// A reserved window is the request's own, drafts included, from the offer on; what drafters leave
// there must never be read as text.
void Referee::check_offers(const NodeOffers& offers) {
    if (!reserved_) return;
    count_page_users();
    for (const NodeOffer& offer : offers.rows) {
        const Book& book = books_.at(scheduler_.id(offer.slot).serial);
        const std::int64_t end = book.length() + offer.max_drafts;
        CHECK(std::ssize(offer.block_table) == cache::pages_for(end), "{} pages for {} slots",
              offer.block_table.size(), end);
        for (std::int64_t p = book.length() - 1; p < end; ++p) {
            const std::int64_t page = offer.block_table[static_cast<std::size_t>(p / kPage)];
            CHECK(page > 0 && page < scheduler_.options().page_count, "page {}", page);
            CHECK(page_users_.at(static_cast<std::int32_t>(page)) == 1,
                  "page {} is offered to one of {}", page,
                  page_users_.at(static_cast<std::int32_t>(page)));
            if (p >= book.length())
                stored_[static_cast<std::size_t>(page * kPage + p % kPage)] = ++noise_ | 1;
        }
    }
}

// A running request's pages are those of its root and granted drafts; with reserved windows every
// draft that was asked for is granted, unless splits are bounded.
void Referee::check_windows_given_back() const {
    for (std::size_t i = 0; i < offered_.size(); ++i) {
        const Book& book = books_.at(offered_[i]);
        if (live_.count(book.order()) == 0) continue;
        const auto planned =
            std::find_if(plan_->requests.begin(), plan_->requests.end(),
                         [&](const PlannedRequest& one) { return one.id == book.id; });
        CHECK(planned != plan_->requests.end(), "{} was offered nodes and has no row", offered_[i]);
        const bool may_be_cut = !reserved_ || scheduler_.options().max_step_splits > 0;
        CHECK(planned->drafts == wanted_drafts_[i] ||
                  (may_be_cut && planned->drafts < wanted_drafts_[i]),
              "{} drafts for {} that were asked for", planned->drafts, wanted_drafts_[i]);
        const auto* table = pages_of(state_of(scheduler_, book.id.slot));
        CHECK(table->pages() == cache::pages_for(book.length() + planned->drafts),
              "{} pages for {} tokens and {} drafts", table->pages(), book.length(),
              planned->drafts);
    }
}

void Referee::check_budget(const Plan& plan) const {
    const SchedulerOptions& options = scheduler_.options();
    std::int64_t tokens = 0, gather = 0, absorbed = 0, all_splits = 0;
    for (const PlannedRow& row : plan.rows) {
        CHECK(row.q_len >= 1, "a row of {} tokens", row.q_len);
        tokens += row.q_len;
        gather += row.gather_count();
        if (row.form != cache::Form::absorbed) continue;
        ++absorbed;
        all_splits += splits(row.q_len, row.first_position + row.q_len);
    }
    CHECK(all_splits <= options.max_step_splits && plan.splits == all_splits,
          "{} splits, {} counted, of {}", all_splits, plan.splits, options.max_step_splits);
    CHECK(tokens <= options.max_step_tokens, "{} tokens", tokens);
    CHECK(gather <= options.max_step_gather, "{} rows of logits", gather);
    CHECK(std::ssize(plan.requests) <= options.max_rows, "{} requests", plan.requests.size());
    CHECK(absorbed <= options.max_rows, "{} absorbed rows", absorbed);
    CHECK(plan.tokens.total() == tokens && plan.tokens.gathered == gather, "{} tokens counted",
          plan.tokens.total());
}

// Requests that lost their pages came, in order, behind all that kept them.
void Referee::check_preempted() const {
    for (const std::int64_t victim : resident_before_) {
        const Book& book = books_.at(victim);
        if (live_.count(book.order()) == 0) continue;
        if (preemptions_of(scheduler_, book.id.slot) == book.preemptions) continue;
        for (const std::int64_t other : resident_before_) {
            const Book& kept = books_.at(other);
            if (live_.count(kept.order()) == 0) continue;
            if (preemptions_of(scheduler_, kept.id.slot) != kept.preemptions) continue;
            CHECK(kept.order() < book.order(), "{} was preempted before {}", victim, other);
        }
    }
}

void Referee::check_planned(const PlannedRequest& planned) {
    Book& book = books_.at(planned.id.serial);
    CHECK(live_.count(book.order()) == 1, "{} has ended and is planned", planned.id.serial);
    CHECK(planned.id == book.id, "slot {} for {}", planned.id.slot.value(), book.id.slot.value());
    const std::int64_t preemptions = preemptions_of(scheduler_, book.id.slot);
    if (preemptions != book.preemptions) book.resident = false;
    book.preemptions = preemptions;
    const PlannedRow& row = plan_->rows[static_cast<std::size_t>(planned.first_row)];
    if (!book.resident) {  // what a lookup may skip: whole pages, with one token left
        CHECK(!planned.decodes(), "{} runs without its prompt", planned.id.serial);
        CHECK(row.first_position % kPage == 0 &&
                  row.first_position <= (book.length() - 1) / kPage * kPage,
              "{} begins at {} of {}", planned.id.serial, row.first_position, book.length());
        book.written = row.first_position;
        book.resident = true;
    }
    if (planned.decodes())
        check_root(book, row, planned);
    else
        check_chunk(book, planned);
}

void Referee::check_root(const Book& book, const PlannedRow& row, const PlannedRequest& planned) {
    CHECK(book.written == book.length() - 1, "{} has written {}", book.id.serial, book.written);
    CHECK(planned.rows == 1 && planned.draws() && row.q_len == 1 + planned.drafts,
          "{} tokens for {} drafts", row.q_len, planned.drafts);
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

void Referee::check_chunk(Book& book, const PlannedRequest& planned) {
    CHECK(planned.rows == 1 || planned.rows == 2, "{} rows", planned.rows);
    std::int64_t next = book.written;
    for (std::int32_t i = 0; i < planned.rows; ++i) {
        const PlannedRow& row = plan_->rows[static_cast<std::size_t>(planned.first_row + i)];
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
    CHECK(planned.draws() == (next == book.length()), "draws at {} of {}", next, book.length());
    const std::int64_t rest = book.length() - book.written;
    const bool logits = logits_done_[book.group] < std::ssize(book.request.prompt);
    if (book.request.prompt_logits && logits) return;
    // Splits may cut it short: one token more would not fit, or did not before somebody left or,
    // for its pages, made way.
    const bool freed = left_meanwhile_ || scheduler_.totals().preemptions != preemptions_before_;
    const std::int64_t had = splits_of_chunk(book, book.written, next);
    const std::int64_t more =
        splits_of_chunk(book, book.written, std::min(next + 1, book.length()));
    const bool cut = more > splits_left() + had || (more > 0 && freed);
    CHECK(cut || next - book.written >= std::min(scheduler_.options().prompt_quantum, rest),
          "a chunk of {} with {} left", next - book.written, rest);
}

void Referee::check_gather(const Book& book, const PlannedRow& row) {
    const std::int64_t end = row.first_position + row.q_len;
    const std::int64_t done = logits_done_[book.group];
    if (book.request.prompt_logits && done < std::ssize(book.request.prompt) && end > done) {
        CHECK(row.gather == Gather::prompt, "no logits for [{}, {})", row.first_position, end);
        CHECK(book.written <= done, "logits of [{}, {}) are left out", done, book.written);
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
    const cache::PageTable& table = *pages_of(state_of(scheduler_, book.id.slot));
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
        if (!std::holds_alternative<Prefilling>(state_of(scheduler_, other.id.slot))) continue;
        const std::int64_t prompt = std::ssize(other.request.prompt);
        const auto known = logits_done_.find(book.group);
        const bool logits =
            other.request.prompt_logits && (known == logits_done_.end() || known->second < prompt);
        if (other.written < (prompt - 1) / kPage * kPage || logits) return true;
    }
    return false;
}

// No request gets a row while one before it in order waits for more than a sibling. Of the running
// requests one may be left out whose splits are not there, half of them being the first prompt's;
// for want of a page only the last in order.
void Referee::check_order() const {
    const std::int64_t most_splits = scheduler_.options().max_step_splits;
    std::int64_t roots = 0;  // splits of those before
    const Book* passed_over = nullptr;
    bool stalled = false;
    for (const auto& [order, serial] : live_) {
        const Book& book = books_.at(serial);
        const State& state = state_of(scheduler_, book.id.slot);
        if (std::holds_alternative<Running>(state)) {
            const std::int64_t root = splits(1, book.length());
            // (Who was cancelled since may have had splits too.)
            const bool no_splits = roots + root > most_splits / 2 || (root > 0 && left_meanwhile_);
            if (planned_.count(serial) == 0 && no_splits) continue;
            CHECK(!stalled, "{} runs, one before it is left out", serial);
            stalled = planned_.count(serial) == 0;
            roots += root;
        } else if (std::holds_alternative<Waiting>(state)) {
            if (before_.count(serial) == 1 && !sibling_leads(book) && passed_over == nullptr)
                passed_over = &book;
        } else if (resident_before_.count(serial) == 0 && before_.count(serial) == 1) {
            CHECK(passed_over == nullptr, "{} was admitted, {} passed over", serial,
                  passed_over->id.serial);
        }
    }
}

// The first request in order gets something in every step, or a sibling computes its prompt.
void Referee::check_progress(const Plan& plan) const {
    if (head_ < 0 || live_.count(books_.at(head_).order()) == 0) return;
    const Book& head = books_.at(head_);
    for (const PlannedRequest& planned : plan.requests) {
        if (planned.id.serial == head_) return;
        const bool waits = std::holds_alternative<Waiting>(state_of(scheduler_, head.id.slot));
        if (waits && books_.at(planned.id.serial).group == head.group && !planned.decodes()) return;
    }
    CHECK(false, "request {} is first in order and got nothing", head_);
}

// The first prompt that does not wait for a sibling gets its quantum, unless rows or pages are with
// those before it. (Checked only when nobody left between the halves of the plan.)
void Referee::check_quantum() const {
    const SchedulerOptions& options = scheduler_.options();
    const Gauges gauges = scheduler_.gauges();
    std::int64_t running = 0, rows_before = 0, roots = 0;
    const bool prompt_planned = std::ranges::any_of(
        plan_->requests, [](const PlannedRequest& planned) { return !planned.decodes(); });
    for (const auto& [order, serial] : live_) {
        const Book& book = books_.at(serial);
        const State& state = state_of(scheduler_, book.id.slot);
        rows_before += pages_of(state) != nullptr || sibling_leads(book) ? 1 : 0;
        if (std::holds_alternative<Running>(state)) {
            ++running;
            const std::int64_t root = splits(1, book.length());
            if (planned_.count(serial) == 0) {
                if (roots + root <= options.max_step_splits / 2)
                    return;                  // it lacks a page: prompts behind it wait
                if (prompt_planned) return;  // it lacks splits: one prompt goes on
                continue;
            }
            roots += root;
            continue;
        }
        if (before_.count(serial) == 0) continue;
        const auto* prompt = std::get_if<Prefilling>(&state);
        if (prompt == nullptr && sibling_leads(book)) continue;
        if (planned_.count(serial) == 1) return;
        const std::int64_t begun = prompt == nullptr ? 0 : prompt->computed;
        if (splits_of_chunk(book, begun, begun + 1) > splits_left()) return;
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

}  // namespace espalier::schedule
