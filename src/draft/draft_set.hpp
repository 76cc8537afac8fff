// SPDX-License-Identifier: Apache-2.0
// The draft models that a target has beside it, from their weights to drafters: what the target's
// pages must hold for them, which of its hidden states they read, and how they are made.
//
//   layout() → the target's cache · make_taps() → its passes · make() → the engine's drafters
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "cache/kv_storage.hpp"
#include "draft/draft_model.hpp"
#include "draft/eagle3_weights.hpp"
#include "draft/model_drafter.hpp"
#include "model/deepseek.hpp"
#include "model/taps.hpp"

namespace espalier::draft {

// What pages hold for a draft model beside latents.
struct DraftPlanes {
    std::int64_t state_width = 0;
    bool indexer = false;  // its layer has one
};

// A target's layout with one layer for each draft model, of the planes that the target's first
// layer has (index keys where the draft's has an indexer too), and their tail states.
cache::KvLayout layout_with(const cache::KvLayout& target, std::span<const DraftPlanes> drafts);

struct DraftSet {
    const model::DeepseekModel& target;
    bool mtp = false;                             // its own layer, loaded with it
    std::shared_ptr<const Eagle3Weights> eagle3;  // null: none

    cache::KvLayout layout() const;
    Expected<model::TapMemory> make_taps(std::int64_t max_tokens) const;
    // MTP first. storage: of layout(); it and the taps outlive the drafters. echo: told of the
    // passes of the target's own layers, where several ranks hold them; a draft of its own is whole
    // on the first rank.
    Expected<std::vector<std::unique_ptr<ModelDrafter>>> make(const Machine& machine,
                                                              const PassLimits& limits,
                                                              cache::KvStorage& storage,
                                                              const model::Taps& taps,
                                                              PassEcho* echo = nullptr) const;
    // Passes of the target's own layer, for a rank that another one leads; without an EAGLE3 draft.
    Expected<std::unique_ptr<DraftPasses>> make_passes(const Machine& machine,
                                                       const PassLimits& limits,
                                                       cache::KvStorage& storage,
                                                       const model::Taps& taps) const;

  private:
    std::vector<std::unique_ptr<Network>> networks() const;
};

}  // namespace espalier::draft
