// SPDX-License-Identifier: Apache-2.0
// What drafts: which drafters a user asks for, whether the model has them, and how they are made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "batch/captured_steps.hpp"
#include "cache/kv_storage.hpp"
#include "draft/draft_set.hpp"
#include "model/taps.hpp"
#include "runtime/loaded_model.hpp"
#include "runtime/model_files.hpp"
#include "speculate/drafter.hpp"
#include "text/tokenizer.hpp"

namespace espalier::runtime {

// ngram: what followed the same tokens before in the text. mtp: the model's own
// multi-token-prediction layer. eagle3: an EAGLE3 draft beside it (ModelFiles::draft). grammar:
// what a request's grammar forces. Alone: auto, all that there are; off, none.
inline const std::vector<std::string> kDrafterNames = {"ngram",   "mtp",  "eagle3",
                                                       "grammar", "auto", "off"};

struct DrafterChoice {
    bool ngram = false;
    bool mtp = false;
    bool eagle3 = false;
    bool grammar = false;

    bool any() const { return ngram || mtp || eagle3 || grammar; }
    bool runs_models() const { return mtp || eagle3; }
    std::vector<std::string> names() const;  // in the order of the engine's list
    bool operator==(const DrafterChoice&) const = default;
};

// An error names what is asked for and what is missing.
Expected<DrafterChoice> choose_drafters(const std::vector<std::string>& wanted,
                                        const ModelFiles& files);

// The drafters that were not chosen, each with what it would take.
std::vector<std::string> left_out(const DrafterChoice& chosen, const ModelFiles& files);

// Adds what the drafters need to the options of loading.
LoadOptions with_drafters(LoadOptions options, const DrafterChoice& drafters,
                          const ModelFiles& files);

// The layout of pages that hold the drafters' layers beside the target's; reads no weights.
cache::KvLayout layout_with(const cache::KvLayout& target, const DrafterChoice& drafters,
                            const ModelFiles& files);

// The draft models among what was loaded.
draft::DraftSet draft_set(const LoadedModel& loaded, const DrafterChoice& drafters);

// Steps are captured on a GPU; a CPU has nothing to gain, and computes what it pads.
batch::CaptureOptions capture_on(const LoadedModel& loaded, bool enforce_eager);

// The partial results of attention that a level of drafts may have; 0: not bounded.
std::int64_t draft_splits(const EngineSizes& sizes);

// Device and limits of draft models.
draft::Machine draft_machine(const LoadedModel& loaded, const batch::CaptureOptions& capture);
draft::PassLimits draft_limits(const EngineSizes& sizes);

// In the order of names(). storage: of the set's layout; it, the taps, the tokenizer and `echo`
// (see draft::DraftSet) outlive the drafters.
Expected<std::vector<std::unique_ptr<speculate::Drafter>>> make_drafters(
    const LoadedModel& loaded, const DrafterChoice& drafters, const EngineSizes& sizes,
    cache::KvStorage& storage, const model::Taps& taps, const batch::CaptureOptions& capture,
    const text::Tokenizer& tokenizer, draft::PassEcho* echo = nullptr);

}  // namespace espalier::runtime
