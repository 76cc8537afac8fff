// SPDX-License-Identifier: Apache-2.0
// An index that is rebuilt from the events alone finds what the pool finds.
#include "cache/page_events.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/random.hpp"
#include "cache/page_table.hpp"

namespace espalier::cache {
namespace {

// Pages by hash, as a router keeps them.
class Rebuilt final : public PageEvents {
  public:
    void stored(const StoredPage& page) override {
        EXPECT_FALSE(pages_.contains(page.hash));
        if (page.parent_hash) {
            ASSERT_TRUE(pages_.contains(*page.parent_hash));
            ++pages_[*page.parent_hash].children;
            EXPECT_EQ(pages_[*page.parent_hash].salt, page.salt);
        }
        pages_[page.hash] = {
            page.parent_hash, page.salt, {page.tokens.begin(), page.tokens.end()}, 0};
    }
    void removed(std::uint64_t hash, std::uint64_t salt) override {
        ASSERT_TRUE(pages_.contains(hash));
        const Page page = pages_[hash];
        EXPECT_EQ(page.children, 0);
        EXPECT_EQ(page.salt, salt);
        if (page.parent_hash) --pages_[*page.parent_hash].children;
        pages_.erase(hash);
    }
    std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
    // Number of the prompt's pages that are there.
    std::int64_t find(std::uint64_t salt, const std::vector<std::int32_t>& tokens) const {
        std::optional<std::uint64_t> parent;
        const auto most = matchable_pages(static_cast<std::int64_t>(tokens.size()));
        for (std::int64_t page = 0; page < most; ++page) {
            const auto begin = tokens.begin() + page * kPageTokens;
            const std::vector<std::int32_t> wanted(begin, begin + kPageTokens);
            const auto found = std::ranges::find_if(pages_, [&](const auto& entry) {
                return entry.second.parent_hash == parent && entry.second.salt == salt &&
                       entry.second.tokens == wanted;
            });
            if (found == pages_.end()) return page;
            parent = found->first;
        }
        return most;
    }

  private:
    struct Page {
        std::optional<std::uint64_t> parent_hash;
        std::uint64_t salt = 0;
        std::vector<std::int32_t> tokens;
        int children = 0;
    };
    std::map<std::uint64_t, Page> pages_;
};

TEST(PageEvents, RebuildWhatThePoolFinds) {
    Random random(3);
    Rebuilt rebuilt;
    PagePool pool(20, 7);
    pool.listen(&rebuilt);
    // Few words, so that beginnings are shared; more pages than the pool has.
    const auto prompt = [&] {
        std::vector<std::int32_t> tokens;
        const auto pages = random.between(1, 6);
        for (std::int64_t page = 0; page < pages; ++page)
            tokens.insert(tokens.end(), kPageTokens,
                          static_cast<std::int32_t>(random.between(0, 2)));
        tokens.push_back(9);
        return tokens;
    };
    std::int64_t found = 0, removed = 0;
    for (int round = 0; round < 2000; ++round) {
        const SequenceKey key{.salt = static_cast<std::uint64_t>(random.between(0, 1))};
        const auto tokens = prompt();
        ASSERT_EQ(rebuilt.find(key.salt, tokens), pool.find_prefix(key, tokens)) << round;
        std::vector<SharedPage> shared;
        std::vector<OwnedPage> owned;
        found += pool.lookup(key, tokens, shared);
        const auto pages = pages_for(static_cast<std::int64_t>(tokens.size()));
        const std::int64_t before = rebuilt.size();
        ASSERT_TRUE(pool.reserve(pages - static_cast<std::int64_t>(shared.size()), owned));
        removed += before - rebuilt.size();
        pool.publish(key, tokens, static_cast<std::int64_t>(tokens.size()) - 1, shared, owned);
        const PageCounts counts = pool.counts();
        EXPECT_EQ(rebuilt.size() + static_cast<std::int64_t>(owned.size()),
                  counts.cached + counts.owned);
    }
    EXPECT_GT(found, 500);
    EXPECT_GT(removed, 500);
}

}  // namespace
}  // namespace espalier::cache
