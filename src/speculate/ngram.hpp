// SPDX-License-Identifier: Apache-2.0
// The first drafter: what followed the longest repeated suffix of the request's own prompt and
// output. Where history branched, the proposal branches. No model, no hidden state. Pure; only
// committed tokens are appended, so nothing is ever taken back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculate/drafter.hpp"
#include "speculate/suffix_automaton.hpp"

namespace espalier::speculate {

struct NgramLimits {
    std::int32_t least_match = 2;   // tokens; shorter repeats say nothing
    std::int32_t max_depth = 24;    // below the root
    std::int32_t max_children = 4;  // of one node, at most 16
    float least_path_score = 0.02f;
    // The history kept is between half of this and this many tokens. Memory per request: at most
    // 1.5 · history · 192 bytes (36 MiB at the default), half of that for ordinary text of that
    // length; a shorter request pays for its own tokens only.
    std::int64_t history = 131072;
    std::int64_t expected = 16384;  // tokens of an expected output that are read, in 8 ms at most
};

// One request's history.
class NgramHistory {
  public:
    explicit NgramHistory(const NgramLimits& limits, std::int64_t expected_tokens = 0);

    // Amortised O(1).
    void append(TokenId token);

    // Fills the proposal (which holds the last appended token as its root) best first, within the
    // shape's depth and nodes. (Width is the cost of a draft model's pass; there is none here.)
    void propose(const DraftShape& shape, Proposal& proposal) const;

    std::int64_t bytes() const { return old_.bytes() + young_.bytes(); }

  private:
    NgramLimits limits_;
    // Two generations bound the memory without a pause: the young one starts when the old one is
    // half full, and takes its place when that is full.
    SuffixAutomaton old_;
    SuffixAutomaton young_;
};

// Possible continuations of one context, best first.
struct Continuation {
    TokenId token = 0;
    float score = 0;
    SuffixAutomaton::State state = SuffixAutomaton::kNone;  // after the token
    std::int32_t length = 0;                                // of the match then
};

// Reads a context the way PPM does: counts at the longest match, then at shorter ones, each entered
// only with the probability that the longer one was not enough. `context` of `length` matched
// tokens; up to out.size() ≤ 16 continuations, no token twice, scores not increasing, their sum
// below 1.
std::size_t continuations(const SuffixAutomaton& automaton, SuffixAutomaton::State context,
                          std::int32_t length, std::int32_t least_match,
                          std::span<Continuation> out);

class NgramDrafter final : public Drafter {
  public:
    explicit NgramDrafter(const NgramLimits& limits) : limits_(limits) {}

    std::string_view name() const override { return "ngram"; }
    DrafterNeeds needs() const override { return {}; }
    // The history begins with the prompt's end and the expected output, as if it had come so once
    // before: the prompt's own end is a repeat then, and so is all that comes as expected.
    void expect(RequestSlot request, std::span<const TokenId> prompt,
                std::span<const TokenId> output) override;
    void begin(RequestSlot request, std::span<const TokenId> prompt,
               std::int64_t max_tokens) override;
    void end(RequestSlot request) override;
    Expected<void> extend(std::span<const Extension>) override { return {}; }
    void commit(std::span<const Commitment> commitments) override;
    Expected<void> propose(std::span<const DraftCall> calls) override;

    std::int64_t bytes() const;

  private:
    NgramHistory& history(RequestSlot request);

    NgramLimits limits_;
    IndexedVector<RequestSlot, std::unique_ptr<NgramHistory>> histories_;
};

}  // namespace espalier::speculate
