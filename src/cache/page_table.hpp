// SPDX-License-Identifier: Apache-2.0
// One sequence's pages in order: first those it has published or shares, which are read-only, then
// those it alone owns and writes. Destroying or clearing it, at any moment, gives every page back.
// Slot i of the sequence lies in page i/64 of the table. Pure; used by the scheduler.
//
// A page given back may be another sequence's in the next plan. That is safe when steps run in the
// order of their plans: the sequence that gets the page writes it in a later step. A request
// cancelled while its step runs anywhere else (a transfer) keeps its table until that has ended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.hpp"

namespace espalier::cache {

class PageTable {
  public:
    // The pool must outlive the table.
    PageTable(PagePool& pool, const SequenceKey& key);
    PageTable(PageTable&&) noexcept = default;
    PageTable& operator=(PageTable&&) noexcept = default;

    // Shares every page the index has that follows the published ones, at most ⌊(tokens−1)/64⌋ in
    // all; owned pages at those places are given back. Returns how many tokens lie in read-only
    // pages afterwards: the sequence's written length is at least that.
    std::int64_t match(std::span<const std::int32_t> tokens);
    // Makes room for this many slots in all: every page needed, or none.
    [[nodiscard]] bool grow(std::int64_t slots);
    // Keeps the pages of the first `slots` slots. (Those of a read-only page stay read-only.)
    void truncate(std::int64_t slots);
    void clear() { truncate(0); }
    // See PagePool::publish: only pages wholly below written_len become findable. tokens: all that
    // are committed, of which the last one's KV is not written: written_length(committed).
    void publish(std::span<const std::int32_t> tokens, std::int64_t written_len);
    // Gives every page back and begins another sequence, in the same memory.
    void restart(const SequenceKey& key);
    // Memory for this many slots, so that nothing allocates until there are more.
    void reserve_memory(std::int64_t slots);

    std::int64_t slots() const { return static_cast<std::int64_t>(ids_.size()) * kPageTokens; }
    std::int64_t pages() const { return static_cast<std::int64_t>(ids_.size()); }
    std::int64_t published_pages() const { return static_cast<std::int64_t>(published_.size()); }
    const SequenceKey& key() const { return key_; }
    // Page ids for a batch's row; good until the next call that changes the table.
    std::span<const std::int32_t> block_table() const { return ids_; }

  private:
    void refresh_ids(std::size_t first);

    PagePool* pool_;
    SequenceKey key_;
    std::vector<SharedPage> published_;
    std::vector<OwnedPage> owned_;
    std::vector<std::int32_t> ids_;  // of published_, then of owned_
};

}  // namespace espalier::cache
