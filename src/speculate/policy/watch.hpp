// SPDX-License-Identifier: Apache-2.0
// Whether a draft model is kept up to date: the KV of every committed token, also where it does not
// draft. That costs (two models 0.06 to 0.1 ms of a step of 0.5 on an H200, 9 % of Sapling's
// arithmetic on a CPU), and without it the model cannot draft for the texts under way: only for
// those that begin later. So a model that is expected to gain less than its looking on takes is
// left behind, and tried again after a pause that gets longer each time. Pure: durations come in as
// data; one for each draft model, in Speculation.
#pragma once

#include <cstdint>

namespace espalier::speculate {

class Watch {
  public:
    // One step and what this draft model had to do with it.
    struct Step {
        std::int64_t rows = 1;
        double seconds = 0;
        double look_on = 0;      // of this model, in it
        double gain = 0;         // seconds that asking this model was expected to save
        std::int64_t pause = 0;  // steps until draft models may be asked in such ones
        bool able = true;        // this one has seen most of the texts
    };
    void observe(const Step& step);

    bool awake() const { return awake_; }
    // Keeps the model up to date again, whatever that costs.
    void wake();

  private:
    void leave(const Step& step);
    void leave_until_open(const Step& step);
    void rest(const Step& step);

    bool awake_ = true;
    // While it looks on; sums over the steps of late.
    double steps_ = 0, cost_ = 0, gain_ = 0;
    double spent_ = 0;         // seconds that it cost since it was woken, its gains taken off
    std::int64_t closed_ = 0;  // steps in a row in which no draft model may be asked
    // While it does not.
    double pause_left_ = 0;  // seconds
    double pauses_ = 1;      // the next one in first ones
};

}  // namespace espalier::speculate
