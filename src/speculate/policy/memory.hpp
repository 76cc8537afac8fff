// SPDX-License-Identifier: Apache-2.0
// What speculation has learnt of a model, its drafters and a machine, as numbers: how often
// drafters were right, what steps and draft passes take, which way of decoding came to how many
// tokens per second. A start from it is a warm one; a wrong one costs speed until it is corrected,
// and changes no text. Plain data: each estimator says in its own words what its numbers are, and
// restores none that it cannot hold. The file is src/runtime/speculation_memory.hpp's.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace espalier::speculate {

using Numbers = std::vector<double>;

struct DrafterMemory {
    std::string name;
    Numbers acceptance;  // AcceptanceTable::save
    Numbers calls;       // DraftTime::save
    bool operator==(const DrafterMemory&) const = default;
};

struct Memory {
    std::vector<DrafterMemory> drafters;
    Numbers step_time;  // StepTime::save
    Numbers rates;      // MeasuredRate::save
    bool operator==(const Memory&) const = default;
};

// Numbers that counts and durations can be: finite, not negative, and far below what overflows.
inline bool are_plausible(std::span<const double> numbers) {
    constexpr double kMost = 1e12;
    for (const double number : numbers)
        if (!std::isfinite(number) || number < 0 || number > kMost) return false;
    return true;
}

}  // namespace espalier::speculate
