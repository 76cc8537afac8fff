// SPDX-License-Identifier: Apache-2.0
// What a step draws, as arrays that a CPU and a GPU read alike. Everything but the committed counts
// and the results lies in one piece of memory: a host lays it out (ops/sampling_builder.hpp), one
// upload copies it, and the device's view is the same layout at another address. Where each array
// begins depends on `nodes` alone, so a captured step finds its data in place.
//
// Lists of any length (biases, bans, counts, masks) share the words at the end of that memory, and
// a node says where its own are: nodes of a request share what they have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/sampling.hpp"

namespace espalier::ops {

// Consecutive entries of a list.
struct ListRange {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    bool operator==(const ListRange&) const = default;
};

// counts[place] = count, before anything is drawn.
struct CountUpdate {
    std::uint32_t place = 0;
    TokenCount count;
};

// Values of `wanted` that are no token.
inline constexpr std::int32_t kDraw = -1;  // the node draws
inline constexpr std::int32_t kPad = -2;   // a row of logits that no request has: token -1, fine

struct SamplingBatch {
    std::int64_t nodes = 0;       // G: rows of logits, pads at the end included
    std::int64_t vocabulary = 0;  // V: every id in lists is below

    DrawParameters* parameters = nullptr;  // [G]
    std::int32_t* position = nullptr;      // [G] of the token that is drawn
    std::int32_t* choice = nullptr;        // [G] which of n parallel answers
    // [G] ≥ 0: nothing is drawn and nothing adjusted; the Draw is this token with its logprob,
    // which is -inf for a raw logit of -inf (a prompt's logprobs).
    std::int32_t* wanted = nullptr;
    // [G] 0: the draw's logprob is not asked for, and it is NaN. That saves a pass of exponentials:
    // 170 of 178 µs for a greedy node of 129,280 tokens. Of no effect with alternatives or wanted.
    std::uint8_t* logprob = nullptr;
    ListRange* biases = nullptr;   // [G] LogitBias in lists, each token once
    ListRange* banned = nullptr;   // [G] int32 ids in lists that must not be drawn
    ListRange* changed = nullptr;  // [G] TokenCount in lists, see below
    // [G] TokenCount in counts: what the request has committed, each token once. Read only where a
    // penalty is on; `changed` has the counts of tokens on the node's path, at most kMaxDrafts: an
    // entry replaces the committed one of its token.
    ListRange* committed = nullptr;
    // [G] where a grammar's mask of ⌈V / 32⌉ words begins in lists; -1: everything is allowed.
    // Token t is allowed if bit t % 32 (from the lowest) of word t / 32 is set. Bits beyond the
    // vocabulary mean nothing.
    std::int32_t* allowed = nullptr;
    // [G] of `alternatives`: places for the tokens of the largest raw logits, descending, ties to
    // the lower id, at most kMaxTopLogprobs. Places without a token (too few above -inf, or bad
    // logits) get {-1, -inf}.
    ListRange* reported = nullptr;
    ListRange* updates = nullptr;    // [1] CountUpdate in lists
    std::uint32_t* lists = nullptr;  // words; ranges begin at a word, whatever their entries are

    // Not part of the upload: device memory that outlives the step (counts) or that it writes.
    TokenCount* counts = nullptr;
    Draw* draws = nullptr;  // [G]
    TokenLogprob* alternatives = nullptr;

    template <typename T>
    std::span<const T> list(ListRange range) const {
        static_assert(sizeof(T) % sizeof(std::uint32_t) == 0 &&
                      alignof(T) <= alignof(std::uint32_t));
        return {reinterpret_cast<const T*>(lists + range.first), range.count};
    }
};

// Lets the batch's arrays of `nodes` entries begin at `base` (host or device) in their order, each
// on a cache line; returns the bytes up to `lists`.
std::size_t place_arrays(SamplingBatch& batch, std::byte* base, std::int64_t nodes);

}  // namespace espalier::ops
