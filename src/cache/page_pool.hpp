// SPDX-License-Identifier: Apache-2.0
// Which sequence owns which page of the cache, and which pages a new one may share. Pure: no
// device, no clock, no thread of its own (all calls come from the engine's). Sequences use it
// through PageTable.
//
// A page is either an OwnedPage, which one sequence writes, or a SharedPage, which is published,
// can be found by others and is never written again. Publishing turns the first into the second.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page.hpp"
#include "cache/page_ledger.hpp"

namespace espalier::cache {

// One reference to a page, given back when dropped. Move-only; empty after a move.
class PageHandle {
  public:
    PageHandle(const PageHandle&) = delete;
    PageHandle& operator=(const PageHandle&) = delete;
    PageId id() const { return id_; }  // kNullPage when empty

  protected:
    friend class PagePool;
    PageHandle() = default;
    PageHandle(PageLedger* ledger, PageId id) : ledger_(ledger), id_(id) {}
    PageHandle(PageHandle&& other) noexcept;
    PageHandle& operator=(PageHandle&& other) noexcept;
    ~PageHandle() { drop(); }
    void drop() noexcept;

    PageLedger* ledger_ = nullptr;
    PageId id_ = kNullPage;
};

// A page that one sequence alone can see. Its slots may be written.
class OwnedPage : public PageHandle {
  public:
    OwnedPage() = default;

  private:
    friend class PagePool;
    OwnedPage(PageLedger* ledger, PageId id) : PageHandle(ledger, id) {}
};

// A published page: wholly written, findable, read-only.
class SharedPage : public PageHandle {
  public:
    SharedPage() = default;
    SharedPage share() const;

  private:
    friend class PagePool;
    SharedPage(PageLedger* ledger, PageId id) : PageHandle(ledger, id) {}
};

class PagePool {
  public:
    // page_count includes the null page, as in KvStorage. Seed and hash: see PrefixIndex.
    explicit PagePool(std::int64_t page_count, std::uint64_t hash_seed = 0,
                      PrefixHash hash = &hash_page);
    // Throws CheckFailure when handles outlive the pool (such handles stay safe to drop) or when
    // the books do not balance; says nothing while another exception is on its way.
    ~PagePool() noexcept(false);
    PagePool(const PagePool&) = delete;
    PagePool& operator=(const PagePool&) = delete;

    // Appends count pages or none; evicts least recently used cached pages where needed. Having
    // too few is an everyday outcome for a scheduler, so it is a plain false. Contents of the
    // pages are undefined.
    [[nodiscard]] bool reserve(std::int64_t count, std::vector<OwnedPage>& pages);

    // Number of the prompt's pages that could be shared now, at most ⌊(tokens−1)/64⌋. Reads only.
    std::int64_t find_prefix(const SequenceKey& key, std::span<const std::int32_t> tokens) const;

    // Appends the found pages that follow those in `pages` (a published beginning of this
    // sequence, often empty), and so keeps them from eviction. Returns how many were appended.
    std::int64_t lookup(const SequenceKey& key, std::span<const std::int32_t> tokens,
                        std::vector<SharedPage>& pages);

    // Publishes what is wholly written and nothing else: page k once written_len ≥ 64(k+1). Call
    // it inside advance(), after the step that wrote the slots. Moves pages from the front of
    // `owned` to the back of `published`; both together are the sequence's pages in order. A page
    // whose content the index has already is given back and the index's page takes its place: one
    // copy of each content, so every hit that is possible is found and no page is held in vain.
    // Returns how many were moved.
    std::int64_t publish(const SequenceKey& key, std::span<const std::int32_t> tokens,
                         std::int64_t written_len, std::vector<SharedPage>& published,
                         std::vector<OwnedPage>& owned);

    // See PrefixIndex.
    void listen(PageEvents* events) { ledger_->listen(events); }
    PageCounts counts() const { return ledger_->counts(); }
    std::int64_t handles() const { return ledger_->handles(); }
    void audit() const { ledger_->audit(); }  // see PageLedger; O(pages), for tests and shutdown

  private:
    void check_sequence(const SequenceKey& key, std::span<const std::int32_t> tokens,
                        const std::vector<SharedPage>& published) const;

    PageLedger* ledger_;  // ours, unless handles outlive us: then the last of them deletes it
};

}  // namespace espalier::cache
