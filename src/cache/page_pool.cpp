// SPDX-License-Identifier: Apache-2.0
#include "cache/page_pool.hpp"

#include <exception>
#include <memory>
#include <utility>

#include "base/check.hpp"

namespace espalier::cache {
namespace {

PageKey key_of_page(const SequenceKey& key, std::span<const std::int32_t> tokens,
                    std::int64_t page_index, PageId parent) {
    const auto first = static_cast<std::size_t>(page_index * kPageTokens);
    return PageKey{parent, key.salt, key.form_of_page(page_index),
                   tokens.subspan(first).first<kPageTokens>()};
}

// The page that a sequence may share at this place, or kNullPage.
PageId find_page(const PrefixIndex& index, const SequenceKey& key,
                 std::span<const std::int32_t> tokens, std::int64_t page_index, PageId parent) {
    PageKey page_key = key_of_page(key, tokens, page_index, parent);
    const PageId page = index.find(page_key);
    if (page != kNullPage || !key.accept_absorbed || page_key.form == Form::absorbed) return page;
    page_key.form = Form::absorbed;
    return index.find(page_key);
}

}  // namespace

PageHandle::PageHandle(PageHandle&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)), id_(std::exchange(other.id_, kNullPage)) {}

PageHandle& PageHandle::operator=(PageHandle&& other) noexcept {
    if (this == &other) return *this;
    drop();
    ledger_ = std::exchange(other.ledger_, nullptr);
    id_ = std::exchange(other.id_, kNullPage);
    return *this;
}

void PageHandle::drop() noexcept {
    PageLedger* ledger = std::exchange(ledger_, nullptr);
    if (ledger == nullptr) return;
    ledger->release(std::exchange(id_, kNullPage));
    if (ledger->ownerless()) delete ledger;
}

SharedPage SharedPage::share() const {
    CHECK(ledger_ != nullptr, "an empty handle has no page to share");
    ledger_->hold(id_);
    return SharedPage(ledger_, id_);
}

PagePool::PagePool(std::int64_t page_count, std::uint64_t hash_seed, PrefixHash hash)
    : ledger_(new PageLedger(page_count, hash_seed, hash)) {}

PagePool::~PagePool() noexcept(false) {
    const std::int64_t leaked = ledger_->handles();
    const bool may_throw = std::uncaught_exceptions() == 0;
    if (leaked > 0) {
        ledger_->listen(nullptr);
        ledger_->abandon();
        if (may_throw) CHECK(leaked == 0, "{} page handles outlive their pool", leaked);
        return;
    }
    const std::unique_ptr<PageLedger> last(ledger_);
    if (may_throw) last->audit();
}

bool PagePool::reserve(std::int64_t count, std::vector<OwnedPage>& pages) {
    CHECK(count >= 0, "{} pages wanted", count);
    if (count > counts().available()) return false;
    const std::size_t before = pages.size();
    pages.resize(before + static_cast<std::size_t>(count));  // may throw: nothing is taken yet
    ledger_->make_room(count);
    for (std::size_t i = before; i < pages.size(); ++i)
        pages[i] = OwnedPage(ledger_, ledger_->take());
    return true;
}

std::int64_t PagePool::find_prefix(const SequenceKey& key,
                                   std::span<const std::int32_t> tokens) const {
    check_sequence(key, tokens, {});
    const std::int64_t most = matchable_pages(static_cast<std::int64_t>(tokens.size()));
    PageId parent = kNullPage;
    for (std::int64_t index = 0; index < most; ++index) {
        parent = find_page(ledger_->index(), key, tokens, index, parent);
        if (parent == kNullPage) return index;
    }
    return most;
}

std::int64_t PagePool::lookup(const SequenceKey& key, std::span<const std::int32_t> tokens,
                              std::vector<SharedPage>& pages) {
    check_sequence(key, tokens, pages);
    const std::int64_t most = matchable_pages(static_cast<std::int64_t>(tokens.size()));
    const auto before = static_cast<std::int64_t>(pages.size());
    for (std::int64_t index = before; index < most; ++index) {
        const PageId parent = pages.empty() ? kNullPage : pages.back().id();
        const PageId page = find_page(ledger_->index(), key, tokens, index, parent);
        if (page == kNullPage) break;
        SharedPage& found = pages.emplace_back();  // may throw: nothing is held yet
        ledger_->hold(page);
        found = SharedPage(ledger_, page);
    }
    return static_cast<std::int64_t>(pages.size()) - before;
}

std::int64_t PagePool::publish(const SequenceKey& key, std::span<const std::int32_t> tokens,
                               std::int64_t written_len, std::vector<SharedPage>& published,
                               std::vector<OwnedPage>& owned) {
    check_sequence(key, tokens, published);
    const auto before = static_cast<std::int64_t>(published.size());
    const std::int64_t slots = (before + static_cast<std::int64_t>(owned.size())) * kPageTokens;
    CHECK(written_len <= static_cast<std::int64_t>(tokens.size()), "{} slots written for {} tokens",
          written_len, tokens.size());
    CHECK(written_len <= slots, "{} slots written in pages for {}", written_len, slots);
    const std::int64_t full = publishable_pages(written_len);
    if (full <= before) return 0;
    const auto count = static_cast<std::size_t>(full - before);
    for (std::size_t i = 0; i < count; ++i) {
        OwnedPage& page = owned[i];
        CHECK(page.ledger_ == ledger_, "page {} belongs to another pool", page.id());
        const PageId parent = published.empty() ? kNullPage : published.back().id();
        const std::int64_t index = before + static_cast<std::int64_t>(i);
        SharedPage& shared = published.emplace_back();  // may throw: the page is still owned
        shared.id_ = ledger_->publish(page.id(), key_of_page(key, tokens, index, parent));
        shared.ledger_ = std::exchange(page.ledger_, nullptr);
        page.id_ = kNullPage;
    }
    // A sequence owns the pages of its next window, so few stay behind and move up.
    owned.erase(owned.begin(), owned.begin() + static_cast<std::ptrdiff_t>(count));
    return full - before;
}

void PagePool::check_sequence(const SequenceKey& key, std::span<const std::int32_t> tokens,
                              const std::vector<SharedPage>& published) const {
    CHECK(key.decompressed_below >= 0 && key.decompressed_below % kPageTokens == 0,
          "the form changes at {}, inside a page of {}", key.decompressed_below, kPageTokens);
    if (published.empty()) return;
    const SharedPage& last = published.back();
    CHECK(last.ledger_ == ledger_, "page {} belongs to another pool", last.id());
    CHECK(tokens.size() >= published.size() * kPageTokens, "{} tokens for {} published pages",
          tokens.size(), published.size());
    const std::span page_tokens =
        tokens.subspan((published.size() - 1) * kPageTokens).first<kPageTokens>();
    CHECK(ledger_->index().holds(last.id(), page_tokens), "page {} holds other tokens", last.id());
}

}  // namespace espalier::cache
