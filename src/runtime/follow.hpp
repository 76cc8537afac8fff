// SPDX-License-Identifier: Apache-2.0
// A rank that another one leads, from its first command to the last: opens models, makes its part
// of engines and carries out their steps (engine/follower.hpp).
#pragma once

#include <chrono>

#include "base/error.hpp"
#include "parallel/ranks.hpp"

namespace espalier::runtime {

// Returns when the first rank says stop. An error, or parallel::RankLost: this rank can go no
// further, and the others have heard why. It waits for a command without limit, so that a first
// rank that was suspended may go on, and within a command for `timeout` (0: without limit, too).
Expected<void> follow(parallel::Ranks& ranks, std::chrono::seconds timeout);

}  // namespace espalier::runtime
