// SPDX-License-Identifier: Apache-2.0
#include "speculate/policy/watch.hpp"

#include <algorithm>
#include <cmath>

namespace espalier::speculate {

namespace {

constexpr double kKept = 1.0 - 1.0 / 64;  // the last ~64 steps count
constexpr double kLeastSteps = 24;        // before it is judged
constexpr std::int64_t kManyTexts = 16;   // in a step that tells as much as two
constexpr double kMostWaiting = 8;        // steps' time that looking on may take without a verdict
constexpr std::int64_t kClosed = 16;      // steps
constexpr double kFirstPause = 2048;      // steps' time
constexpr double kLongestPauses = 16;     // first ones
constexpr double kShare = 0.005;          // of the time, for looking on in vain

}  // namespace

void Watch::observe(const Step& step) {
    if (!std::isfinite(step.seconds) || step.seconds <= 0) return;
    if (!awake_) return rest(step);
    spent_ += step.look_on - step.gain;
    closed_ = step.pause == 0 ? 0 : closed_ + 1;
    if (closed_ >= kClosed) return leave_until_open(step);
    if (step.able) {
        steps_ = steps_ * kKept + (step.rows >= kManyTexts ? 2 : 1);
        cost_ = cost_ * kKept + step.look_on;
        gain_ = gain_ * kKept + step.gain;
    }
    if (steps_ >= kLeastSteps && gain_ >= cost_) {
        spent_ = 0;
        pauses_ = 1;
    } else if (steps_ >= kLeastSteps || spent_ >= kMostWaiting * step.seconds) {
        leave(step);
    }
}

void Watch::leave(const Step& step) {
    const double pause = std::max(pauses_ * kFirstPause * step.seconds, spent_ / kShare);
    const double next = std::min(2 * pauses_, kLongestPauses);
    *this = {};
    awake_ = false;
    pause_left_ = pause;
    pauses_ = next;
}

// It was not judged: the way was, by what all of it came to, and knows how long that holds.
void Watch::leave_until_open(const Step& step) {
    const double pauses = pauses_;
    leave(step);
    pauses_ = pauses;
    pause_left_ = static_cast<double>(step.pause) * step.seconds;
}

void Watch::rest(const Step& step) {
    pause_left_ -= step.seconds;
    if (pause_left_ <= 0 && step.pause == 0) wake();
}

void Watch::wake() {
    const double next = pauses_;
    *this = {};
    pauses_ = next;
}

}  // namespace espalier::speculate
