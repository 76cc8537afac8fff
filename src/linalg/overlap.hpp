// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace espalier::linalg {

// How an operation may overlap its neighbours in a GPU's stream. By default each runs after the one
// before it has ended, as always on a CPU.
struct Overlap {
    // All that it reads was there before the operation in front could let it start: it need not
    // wait for that one's end before its own.
    bool inputs_settled = false;
    // The operation behind starts only when all in front of this one has ended.
    bool holds_next = false;
};

}  // namespace espalier::linalg
