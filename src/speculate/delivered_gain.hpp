// SPDX-License-Identifier: Apache-2.0
// What speculation delivers of the gain that it predicts. Near the point where drafts neither gain
// nor lose, the best of many plans is the one whose estimate is most in error, and no model of a
// step knows all that drafting costs (caches that a draft model's weights displace, threads that
// wake up). Measured with Sapling on two cores at temperature 2: 1.6 tokens a step expected where
// 1.5 came, 8 % slower than without. So what is predicted is held to what happens, and a gain
// counts only as far as such gains were delivered. Pure: tokens and durations come in as data.
#pragma once

#include <array>
#include <cstdint>

namespace espalier::speculate {

// What was expected of a step.
struct StepPromise {
    double tokens = 0;
    double seconds = 0;   // 0: nothing was promised, and the step tells nothing
    bool drafts = false;  // whether something was drafted because it pays
};

class DeliveredGain {
  public:
    // The part of a predicted gain that steps with about as many rows deliver, in [0.85, 1].
    double factor(std::int64_t rows) const;
    // A step without prompts: all tokens committed and all time spent, whatever it went into.
    void observe(std::int64_t rows, const StepPromise& promise, double tokens, double seconds);

  private:
    // A mean that fades; 1 while little is known.
    struct Mean {
        double weight = 0;
        double sum = 0;
        double value() const;
        void add(double value);
        void fade();
    };
    // Delivered over promised, by steps of 1, 2-3, 4-7, … rows.
    struct Class {
        Mean tokens, seconds;  // of steps with drafts
        Mean plain_seconds;    // of steps without
    };
    std::array<Class, 12> classes_;
};

}  // namespace espalier::speculate
