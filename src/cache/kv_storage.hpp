// SPDX-License-Identifier: Apache-2.0
// The paged latent cache: pages of 64 slots, one id per page across all layers. Page 0 is the null
// page: it fills block tables, is never written and never owned. (The page pool says which sequence
// owns which page.)
#pragma once

#include <cstdint>
#include <vector>

#include "base/device.hpp"
#include "base/error.hpp"
#include "base/matrix.hpp"
#include "cache/page.hpp"
#include "mla/contract.hpp"

namespace espalier::cache {

// One layer's place in the storage. A page id is good for every layer.
struct KvLayer {
    mla::KvFormat format = mla::KvFormat::bf16;
    std::int64_t page_stride = 0;  // bytes from page to page of this layer
};

struct KvLayout {
    std::vector<KvLayer> target;
    std::vector<KvLayer> draft;  // may have another format
    // Floats per page: the draft's input state at the page's last slot, from which a draft model
    // goes on behind a page that was found in the prefix index; 0: none is kept.
    std::int64_t tail_hidden = 0;

    std::int64_t bytes_per_page() const;
    std::int64_t bytes_per_token() const { return bytes_per_page() / kPageTokens; }
};

KvLayout make_layout(std::int64_t target_layers, mla::KvFormat format);

class KvStorage {
  public:
    // page_count includes the null page.
    static Expected<KvStorage> create(Device& device, const KvLayout& layout,
                                      std::int64_t page_count);

    const KvLayout& layout() const { return layout_; }
    std::int64_t page_count() const { return page_count_; }
    mla::KvPages target(std::int64_t layer);  // the pages of one target layer
    mla::KvPages draft(std::int64_t layer);   // and of one draft layer
    Matrix tail_hidden();                     // [page_count, layout().tail_hidden] f32
    // Every byte of every page, on the device that it was created on.
    Expected<void> fill(Device& device, std::byte value);

  private:
    KvLayout layout_;
    std::int64_t page_count_ = 0;
    std::vector<Buffer> target_;
    std::vector<Buffer> draft_;
    Buffer tail_hidden_;
};

}  // namespace espalier::cache
