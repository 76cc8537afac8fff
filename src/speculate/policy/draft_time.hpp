// SPDX-License-Identifier: Apache-2.0
// How long a drafter takes to draft: a cost per level (a pass of its model) and a cost per token
// that these passes compute: the roots, and all nodes but those of the last level, which are only
// chosen. Learnt from its own calls alone. Pure: durations come in as data.
//
// The two that explain the calls of late with the least sum of relative errors: the first calls
// find memory cold or make recordings and take many times as long, and such calls must not count.
// Calls alike (128 chains, whatever their depth) cannot tell a level's cost from a token's; then
// most of it is the level's. Taken for a token's it would make drafts for many texts look dear, and
// those that are not asked for correct no estimate: 128 texts on a simulated H200 were planned
// with 1.6 to 3.3 µs a token where it is 0.1, and gained 5 to 10 % where 20 to 30 were to be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "speculate/policy/memory.hpp"

namespace espalier::speculate {

class DraftTime {
  public:
    DraftTime();
    bool known() const { return !calls_.empty(); }
    // A call whose passes compute `tokens` over all its requests in `levels` passes. 0 while
    // nothing is known.
    double seconds(std::int32_t levels, std::int64_t tokens) const {
        return static_cast<double>(levels) * costs_.level +
               static_cast<double>(tokens) * costs_.token;
    }
    double per_level() const { return costs_.level; }
    double per_token() const { return costs_.token; }
    void observe(std::int32_t levels, std::int64_t tokens, double seconds);
    // Levels, tokens and seconds of the calls that are kept. False, and nothing restored: no calls.
    Numbers save() const;
    bool restore(std::span<const double> numbers);

  private:
    // Calls are kept by about how many tokens a level has, a few of each kind, so that those for
    // many texts do not drive out what is known of few.
    static constexpr std::size_t kOfAKind = 4, kMostCalls = 16;
    struct Call {
        double levels = 0, tokens = 0, seconds = 0;
        int kind = 0;
    };
    struct Costs {
        double level = 0, token = 0;
    };
    void keep(const Call& call);
    double error(const Costs& costs) const;
    void fit();

    std::vector<Call> calls_;  // the oldest first
    Costs costs_;
};

}  // namespace espalier::speculate
