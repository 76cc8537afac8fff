// SPDX-License-Identifier: Apache-2.0
// The paged cache as memory: pages of 64 slots, one id per page across all planes. A plane is what
// every page holds of one kind for one layer: the latents of a layer's keys, or the state that ends
// a page. Page 0 is the null page: it fills block tables, is never written and never owned. (The
// page pool says which sequence owns which page.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/device.hpp"
#include "base/error.hpp"
#include "base/matrix.hpp"
#include "cache/page.hpp"
#include "mla/contract.hpp"

namespace espalier::cache {

inline constexpr std::string_view kLatents = "latents";       // keys of attention
inline constexpr std::string_view kIndexKeys = "index_keys";  // of a layer that has an indexer
// A draft's input state at the page's last slot, from which a draft model goes on behind a page
// that was found in the prefix index.
inline constexpr std::string_view kTailStates = "tail_states";

// The list of planes is all that the cache knows of a model: allocating, counting and filling pages
// and moving slots go by it.
struct Plane {
    enum class Of : std::uint8_t { target, draft };

    std::string_view name;         // lives as long as the program
    Of model = Of::target;         // whose passes write it
    std::int64_t layer = 0;        // of that model
    mla::KvFormat format = {};     // of the columns
    KeyDims columns;               // of a slot; of planes without rotated ones rope is 0
    bool of_slots = true;          // false: the page has one row of columns, not one a slot
    std::int64_t page_stride = 0;  // bytes from page to page

    bool operator==(const Plane&) const = default;
};
Plane slot_plane(std::string_view name, Plane::Of model, std::int64_t layer, mla::KvFormat format,
                 const KeyDims& columns);
Plane tail_plane(std::int64_t layer, std::int64_t floats);

struct KvLayout {
    std::vector<Plane> planes;

    std::int64_t bytes_per_page() const;
    std::int64_t bytes_per_token() const { return bytes_per_page() / kPageTokens; }
    std::int64_t layers(Plane::Of model) const;  // that have latents
    std::size_t index_of(std::string_view name, Plane::Of model, std::int64_t layer) const;
    bool has(std::string_view name, Plane::Of model, std::int64_t layer) const;
    // The planes of one layer alone, as they are.
    KvLayout layer(Plane::Of model, std::int64_t layer) const;
    // Formats that decide a text: each of the target's planes once. "bf16"; of planes that
    // are no latents with their name, "bf16, index_keys fp8_token".
    std::string formats() const;
};

// Latents alone.
KvLayout make_layout(std::int64_t target_layers, mla::KvFormat format, const KeyDims& keys = {});

// Pages of one layer.
struct LayerPages {
    mla::KvPages latents;
    mla::KvPages index_keys = {};  // without data: there are none
};

class KvStorage {
  public:
    // page_count includes the null page.
    static Expected<KvStorage> create(Device& device, const KvLayout& layout,
                                      std::int64_t page_count);

    const KvLayout& layout() const { return layout_; }
    std::int64_t page_count() const { return page_count_; }
    mla::KvPages pages(std::size_t plane);  // of layout().planes, a plane of slots
    LayerPages layer(Plane::Of model, std::int64_t layer);
    mla::KvPages target(std::int64_t layer);       // the latents of one target layer
    mla::KvPages draft(std::int64_t layer);        // and of one draft layer
    Matrix tail_states(std::int64_t draft_layer);  // [page_count, floats] f32
    // Every byte of every page, on the device that it was created on.
    Expected<void> fill(Device& device, std::byte value);

  private:
    KvLayout layout_;
    std::int64_t page_count_ = 0;
    std::vector<Buffer> memory_;  // [planes]
};

}  // namespace espalier::cache
