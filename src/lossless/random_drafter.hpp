// SPDX-License-Identifier: Apache-2.0
// A drafter for workloads: random trees that are sometimes right. It is given whole texts; where
// what a request has committed begins some of them, their continuations may enter its tree, between
// wrong branches.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "speculate/drafter.hpp"

namespace espalier::lossless {

struct RandomDrafterOptions {
    double truth = 0.5;              // chance that a node continues a known text, if there is one
    double silence = 0.2;            // chance to propose nothing
    std::int64_t breaks_after = -1;  // calls; then it returns errors; < 0: never
    double out_of_vocabulary = 0;    // chance of a proposal that must be refused
    // Known continuations score below their wrong siblings, so they are never the first branch.
    bool truth_last = false;
    // A drafter with layers: its windows must be reserved, and its shape is planned.
    bool model_like = false;
    std::int64_t call_nanoseconds = 0;  // that a call takes, on the workload's clock
};

class RandomDrafter final : public speculate::Drafter {
  public:
    using Tokens = std::vector<std::int32_t>;
    // clock: advanced by what its calls take; null: they take nothing.
    RandomDrafter(std::uint64_t seed, RandomDrafterOptions options, std::vector<Tokens> texts,
                  Tokens palette, std::int64_t* clock = nullptr)
        : random_(seed),
          options_(options),
          texts_(std::move(texts)),
          palette_(std::move(palette)),
          clock_(clock) {}

    std::string_view name() const override { return "random"; }
    speculate::DrafterNeeds needs() const override {
        return {.draft_cache = options_.model_like, .passes = options_.model_like};
    }
    void begin(RequestSlot request, std::span<const std::int32_t> prompt,
               std::int64_t max_tokens) override;
    void end(RequestSlot request) override;
    Expected<void> extend(std::span<const speculate::Extension>) override { return {}; }
    void commit(std::span<const speculate::Commitment> commitments) override;
    bool follows(RequestSlot request, std::int64_t root_position) const override {
        return std::ssize(committed_[request]) == root_position + 1;
    }
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override;

  private:
    void grow(const speculate::DraftCall& call);
    const Tokens* matching_text(const Tokens& committed);
    float score(bool true_node);

    Random random_;
    RandomDrafterOptions options_;
    std::vector<Tokens> texts_;
    Tokens palette_;
    std::int64_t* clock_;
    IndexedVector<RequestSlot, Tokens> committed_;
    std::int64_t calls_ = 0;
};

}  // namespace espalier::lossless
