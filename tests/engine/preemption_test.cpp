// SPDX-License-Identifier: Apache-2.0
// Drafters hear that a request has lost its pages before anything of theirs could be written there:
// no extension and no window of a call touches a page for which another request's tokens wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/fake_target.hpp"
#include "engine/harness.hpp"

namespace espalier::engine {
namespace {

// Keeps what a drafter with KV of its own has not written yet, as a drafter that is told does: all
// of it is written when a page is complete.
class WaitingDrafter final : public speculate::Drafter {
  public:
    struct Seen {
        int preempted = 0, with_waiting = 0, extended = 0, calls = 0;
    };
    explicit WaitingDrafter(Seen& seen) : seen_(seen) {}

    speculate::DrafterNeeds needs() const override {
        return {.hidden_states = true, .draft_cache = true};
    }
    void begin(RequestSlot request, std::span<const std::int32_t>, std::int64_t) override {
        EXPECT_EQ(next_.count(request), 0u);
    }
    void end(RequestSlot request) override { forget_request(request); }
    void preempted(RequestSlot request) override {
        ++seen_.preempted;
        seen_.with_waiting += forget_request(request) ? 1 : 0;
    }
    Expected<void> extend(std::span<const speculate::Extension> extensions) override {
        bool complete = false;
        for (const speculate::Extension& one : extensions) {
            const std::int64_t end = one.first_position + std::ssize(one.tokens);
            const auto known = next_.find(one.request);
            if (known != next_.end()) {
                EXPECT_EQ(one.first_position, known->second);
            }
            next_[one.request] = end;
            for (std::int64_t at = one.first_position; at < end; ++at) {
                const std::int32_t page = page_of(one.block_table, at);
                EXPECT_TRUE(is_free_for(one.request, page)) << "page " << page;
                waiting_[page] = one.request;
                complete = complete || at % cache::kPageTokens == cache::kPageTokens - 1;
            }
            ++seen_.extended;
        }
        if (complete) waiting_.clear();
        return {};
    }
    void commit(std::span<const speculate::Commitment>) override {}
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override {
        for (const speculate::DraftCall& call : calls) {
            const std::int64_t end = std::ssize(call.block_table) * cache::kPageTokens;
            for (std::int64_t at = call.root_position; at < end; ++at)
                EXPECT_TRUE(is_free_for(call.request, page_of(call.block_table, at)));
            ++seen_.calls;
        }
        return {};
    }

  private:
    static std::int32_t page_of(std::span<const std::int32_t> table, std::int64_t position) {
        return table[static_cast<std::size_t>(position / cache::kPageTokens)];
    }
    bool is_free_for(RequestSlot request, std::int32_t page) const {
        const auto found = waiting_.find(page);
        return found == waiting_.end() || found->second == request;
    }
    bool forget_request(RequestSlot request) {
        next_.erase(request);
        return std::erase_if(waiting_, [&](const auto& one) { return one.second == request; }) > 0;
    }

    Seen& seen_;
    std::map<RequestSlot, std::int64_t> next_;     // position of the next extension
    std::map<std::int32_t, RequestSlot> waiting_;  // by page: whose tokens wait for it
};

TEST(Preemption, DraftersHearOfItBeforeThePagesAreUsedAgain) {
    constexpr std::int64_t kPages = 17;  // 16 for requests that want 27
    StepperSettings settings = roomy_settings();
    settings.schedule.page_count = kPages;
    settings.schedule.reserve_windows = true;
    WaitingDrafter::Seen seen;
    Harness::Drafters drafters;
    drafters.push_back(std::make_unique<WaitingDrafter>(seen));
    auto target = std::make_unique<FakeTarget>(
        512, model::ModelLimits{.max_tokens = 1024, .max_gather = 512, .max_kv_len = 4096}, kPages);
    const FakeTarget& fake = *target;
    Harness harness(std::move(target), *tiny_target(Family::v2).tokenizer, settings,
                    std::move(drafters));
    std::vector<Request> requests;
    std::vector<std::shared_ptr<Recorder>> recorders;
    const auto submit = [&](const Request& request) {
        requests.push_back(request);
        recorders.push_back(harness.submit(request));
    };
    for (std::uint64_t i = 0; i < 8; ++i) {
        Request request = plain_request(static_cast<std::size_t>(40 + 25 * i), 90, i + 1);
        if (i == 2) request.deadline = 400'000;  // expires while it runs
        submit(request);
    }
    // Urgent prompts take pages at any moment, not only when a page of somebody has become full.
    for (std::uint64_t i = 0; i < 6; ++i) {
        for (int step = 0; step < 13; ++step) harness.stepper->step();
        Request request = plain_request(static_cast<std::size_t>(150 + 40 * i), 5, 20 + i);
        request.priority = -1;
        submit(request);
    }
    harness.run();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        std::vector<std::int32_t> text = whole_text(requests[i], recorders[i]->choice(0).output);
        EXPECT_EQ(recorders[i]->choice(0).ended == Interruption::deadline, i == 2);
        for (std::size_t at = requests[i].prompt.size(); at < text.size(); ++at)
            ASSERT_EQ(text[at], fake.next_token(std::span(text).first(at)));
    }
    EXPECT_EQ(seen.preempted, harness.stepper->scheduler().totals().preemptions);
    EXPECT_GT(seen.with_waiting, 0);
    EXPECT_GT(seen.calls, 100);
}

}  // namespace
}  // namespace espalier::engine
