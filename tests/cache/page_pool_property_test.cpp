// SPDX-License-Identifier: Apache-2.0
// Random requests over a pool that is too small for them, against PageModel: they arrive, match,
// take chunks and trees of which a part is accepted, are preempted, arrive again and are cancelled
// at any moment, while stray handles come and go. After every operation all counts, all tables and
// what can be found must agree, and a slot of a found page must hold what its place in the sequence
// needs.
#include <gtest/gtest.h>

#include <list>

#include "base/random.hpp"
#include "cache/page_model.hpp"
#include "cache/page_table.hpp"

namespace espalier::cache {
namespace {

std::uint64_t nearly_constant_hash(std::uint64_t, const PageKey& key) {
    return static_cast<std::uint64_t>(key.tokens[0] & 1);
}

// Value that the KV of a position depends on: salt, the forms and the tokens up to it.
std::uint64_t latent(const SequenceKey& key, const std::vector<std::int32_t>& tokens,
                     std::int64_t position) {
    std::uint64_t state = key.salt + 1;
    for (std::int64_t p = 0; p <= position; ++p) {
        const auto token = static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(p)]);
        const std::uint64_t form = p < key.decompressed_below ? 2 : 1;
        state = (state ^ (token * 4 + form)) * 0x9e3779b97f4a7c15ull;
        state ^= state >> 29;
    }
    return state;
}

struct Request {
    PageTable table;
    std::vector<std::int32_t> tokens;  // prompt, then what was generated
    std::int64_t written = 0;
    std::vector<PageId> expected;  // the table, as the model has it
    std::int64_t expected_published = 0;
};

class World {
  public:
    World(std::uint64_t seed, std::int64_t page_count)
        : random_(seed),
          pool_(page_count, seed, seed % 2 == 0 ? &hash_page : &nearly_constant_hash),
          model_(page_count),
          stored_(static_cast<std::size_t>(page_count * kPageTokens)) {}

    void step() {
        const int kind = random_.between(0, 99);
        if (kind < 12)
            arrive();
        else if (kind < 62)
            advance();
        else if (kind < 72)
            cancel();
        else if (kind < 78)
            preempt();
        else if (kind < 82)
            arrive_again();
        else if (kind < 88)
            lookup_stray();
        else if (kind < 94)
            drop_strays();
        else
            reserve_stray();
    }

    void compare() {
        ASSERT_EQ(pool_.counts(), model_.counts());
        ASSERT_EQ(pool_.handles(), model_.handles());
        ASSERT_NO_THROW(pool_.audit());
        for (const Request& request : requests_) {
            const auto ids = request.table.block_table();
            ASSERT_EQ(std::vector<PageId>(ids.begin(), ids.end()), request.expected);
            ASSERT_EQ(request.table.published_pages(), request.expected_published);
            check_stored(request.table.key(), request.tokens, request.expected, request.written);
        }
        const auto [key, prompt] = any_prompt();
        const std::vector<PageId> findable = model_.longest_prefix(key, prompt);
        ASSERT_EQ(pool_.find_prefix(key, prompt), std::ssize(findable));
        check_stored(key, prompt, findable, std::ssize(findable) * kPageTokens);
    }

    std::int64_t evictions() const { return model_.evictions(); }
    std::int64_t tokens_found() const { return tokens_found_; }
    std::int64_t deduplicated() const { return deduplicated_; }
    std::int64_t refused() const { return refused_; }

  private:
    std::pair<SequenceKey, std::vector<std::int32_t>> any_prompt() {
        std::vector<std::int32_t> tokens;
        // Few different pages, so that prompts share beginnings; lengths at and next to multiples.
        for (int left = random_.between(1, 6); left > 0; --left)
            tokens.insert(tokens.end(), kPageTokens, random_.between(0, 1) * random_.between(1, 3));
        const int cut = random_.one_of({0, 0, 1, 63, random_.between(0, 63)});
        tokens.resize(tokens.size() - static_cast<std::size_t>(cut));
        if (random_.chance(0.3)) tokens.push_back(5);
        SequenceKey key;
        key.salt = random_.chance(0.8) ? 0 : 1;
        key.decompressed_below = random_.chance(0.9) ? decompressed_below(std::ssize(tokens)) : 0;
        return {key, tokens};
    }

    void check_stored(const SequenceKey& key, const std::vector<std::int32_t>& tokens,
                      const std::vector<PageId>& pages, std::int64_t written) {
        // One position of each page, chosen at random, and the last: every slot gets its turn.
        for (std::int64_t first = 0; first < written; first += kPageTokens) {
            const std::int64_t position =
                std::min(first + random_.between(0, kPageTokens - 1), written - 1);
            ASSERT_EQ(stored_.at(pool_slot(pages, position)), latent(key, tokens, position))
                << "position " << position;
        }
    }
    static std::size_t pool_slot(const std::vector<PageId>& pages, std::int64_t slot) {
        const PageId page = pages.at(static_cast<std::size_t>(slot / kPageTokens));
        return static_cast<std::size_t>(page * std::int64_t{kPageTokens} + slot % kPageTokens);
    }

    Request* any_request() {
        if (requests_.empty()) return nullptr;
        return &*std::next(requests_.begin(),
                           random_.between(0, static_cast<int>(requests_.size()) - 1));
    }

    void arrive() {
        if (requests_.size() > 5) return;
        auto [key, prompt] = any_prompt();
        Request& request = requests_.emplace_back(Request{PageTable(pool_, key), prompt, 0, {}, 0});
        match(request);
    }

    void match(Request& request) {
        const std::int64_t found = request.table.match(request.tokens);
        const auto pages = model_.longest_prefix(request.table.key(), request.tokens);
        for (auto k = static_cast<std::size_t>(request.expected_published); k < pages.size(); ++k) {
            model_.hold(pages[k]);
            if (k < request.expected.size()) {
                model_.drop(request.expected[k]);
                request.expected[k] = pages[k];
            } else {
                request.expected.push_back(pages[k]);
            }
        }
        request.expected_published = std::max(request.expected_published, std::ssize(pages));
        ASSERT_EQ(found, request.expected_published * kPageTokens);
        ASSERT_TRUE(found < std::ssize(request.tokens));
        tokens_found_ += found;
        request.written = std::max(request.written, found);
    }

    void grow(Request& request, std::int64_t slots) {
        const std::int64_t missing = pages_for(slots) - std::ssize(request.expected);
        const bool fits = missing <= 0 || model_.reserve(missing);
        ASSERT_EQ(request.table.grow(slots), fits);
        if (!fits) ++refused_;
        if (!fits || missing <= 0) return;
        for (const PageId page :
             request.table.block_table().last(static_cast<std::size_t>(missing))) {
            ASSERT_TRUE(model_.take(page)) << "page " << page << " was not free";
            request.expected.push_back(page);
        }
    }

    // One step of a request: a prompt chunk or a tree of which a part is accepted. It may be
    // cancelled after the step ran and before anything was committed.
    void advance() {
        Request* request = any_request();
        if (request == nullptr) return;
        if (random_.chance(0.1)) match(*request);  // another request may have published since
        const std::int64_t root = request->written;
        const bool in_prompt = root + 1 < std::ssize(request->tokens);
        const std::int64_t window = in_prompt
                                        ? std::min<std::int64_t>(random_.between(1, 200),
                                                                 std::ssize(request->tokens) - root)
                                        : random_.between(1, 64);
        grow(*request, root + window);
        if (request->table.slots() < root + window) return;
        for (std::int64_t i = 0; i < window; ++i)  // drafts: rejected until the walk says otherwise
            slot_to_write(request->table, root + i) = random_.bits();
        if (random_.chance(0.1)) return cancel();
        const std::int64_t accepted =
            in_prompt ? window : random_.between(1, static_cast<int>(window));
        commit(*request, root + accepted);
    }

    void commit(Request& request, std::int64_t written) {
        const SequenceKey& key = request.table.key();
        while (std::ssize(request.tokens) <= written) {
            const std::uint64_t last = latent({}, request.tokens, std::ssize(request.tokens) - 1);
            request.tokens.push_back(last % 8 == 0 ? 1 : 0);
        }
        for (std::int64_t slot = request.written; slot < written; ++slot)
            slot_to_write(request.table, slot) = latent(key, request.tokens, slot);
        request.written = written;
        if (random_.chance(0.7)) truncate(request, written);
        publish(request);
    }

    void truncate(Request& request, std::int64_t slots) {
        request.table.truncate(slots);
        while (std::ssize(request.expected) > pages_for(slots)) {
            model_.drop(request.expected.back());
            request.expected.pop_back();
        }
        request.expected_published =
            std::min(request.expected_published, std::ssize(request.expected));
    }

    void publish(Request& request) {
        request.table.publish(request.tokens, request.written);
        for (std::int64_t& k = request.expected_published; 64 * (k + 1) <= request.written; ++k) {
            PageId& page = request.expected.at(static_cast<std::size_t>(k));
            const PageId parent =
                k == 0 ? kNullPage : request.expected.at(static_cast<std::size_t>(k - 1));
            const auto content = PageModel::content(request.table.key(), request.tokens, k + 1);
            const PageId listed = model_.publish(page, content, parent);
            if (listed != page) ++deduplicated_;
            page = listed;
        }
    }

    void cancel() {
        Request* request = any_request();
        if (request == nullptr) return;
        for (const PageId page : request->expected) model_.drop(page);
        requests_.remove_if([&](const Request& each) { return &each == request; });
    }

    void preempt() {  // the tokens are kept, the pages go; form by place stays
        Request* request = any_request();
        if (request == nullptr) return;
        truncate(*request, 0);
        request->written = 0;
        if (random_.chance(0.5)) match(*request);
    }

    void arrive_again() {  // with the text of another, generated part included
        const Request* request = any_request();
        if (request == nullptr || requests_.size() > 5) return;
        match(requests_.emplace_back(
            Request{PageTable(pool_, request->table.key()), request->tokens, 0, {}, 0}));
    }

    // Value in the slot; no page that others may read is written.
    std::uint64_t& slot_to_write(const PageTable& table, std::int64_t slot) {
        EXPECT_GE(slot, table.published_pages() * kPageTokens);
        const PageId page = table.block_table()[static_cast<std::size_t>(slot / kPageTokens)];
        return stored_.at(
            static_cast<std::size_t>(page * std::int64_t{kPageTokens} + slot % kPageTokens));
    }

    void lookup_stray() {
        const auto [key, prompt] = any_prompt();
        std::vector<SharedPage> found;
        const auto pages = model_.longest_prefix(key, prompt);
        ASSERT_EQ(pool_.lookup(key, prompt, found), std::ssize(pages));
        for (std::size_t i = 0; i < pages.size(); ++i) {
            ASSERT_EQ(found[i].id(), pages[i]);
            model_.hold(pages[i]);
            if (random_.chance(0.2)) {
                strays_.push_back(found[i].share());
                model_.hold(pages[i]);
            }
            strays_.push_back(std::move(found[i]));
        }
    }

    void drop_strays() {  // in any order, singly
        for (int left = random_.between(1, 12); left > 0 && !strays_.empty(); --left) {
            std::swap(strays_[random_.bits() % strays_.size()], strays_.back());
            model_.drop(strays_.back().id());
            strays_.pop_back();
        }
        if (random_.chance(0.5)) {
            for (const OwnedPage& page : reserved_) model_.drop(page.id());
            reserved_.clear();
        }
    }

    void reserve_stray() {
        const int count = random_.between(0, 8);
        const std::size_t before = reserved_.size();
        const bool fits = model_.reserve(count);
        ASSERT_EQ(pool_.reserve(count, reserved_), fits);
        ASSERT_EQ(reserved_.size(), before + (fits ? static_cast<std::size_t>(count) : 0));
        for (std::size_t i = before; i < reserved_.size(); ++i)
            ASSERT_TRUE(model_.take(reserved_[i].id()));
    }

    Random random_;
    PagePool pool_;
    PageModel model_;
    std::vector<std::uint64_t> stored_;  // what a forward pass would have left in each slot
    std::list<Request> requests_;
    std::vector<SharedPage> strays_;
    std::vector<OwnedPage> reserved_;
    std::int64_t tokens_found_ = 0;
    std::int64_t deduplicated_ = 0;
    std::int64_t refused_ = 0;
};

TEST(PagePoolProperty, AgreesWithAPlainModelAfterEveryOperation) {
    std::int64_t evictions = 0, found = 0, deduplicated = 0, refused = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        World world(seed, 4 + static_cast<std::int64_t>(seed % 7) * 6);
        for (int step = 0; step < 600; ++step) {
            world.step();
            world.compare();
            ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " step " << step;
        }
        evictions += world.evictions();
        found += world.tokens_found();
        deduplicated += world.deduplicated();
        refused += world.refused();
    }
    // The workload must reach what it is there for.
    EXPECT_GT(evictions, 1000);
    EXPECT_GT(found, 64 * 1000);
    EXPECT_GT(deduplicated, 100);
    EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace espalier::cache
