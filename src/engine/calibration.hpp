// SPDX-License-Identifier: Apache-2.0
// How long a step takes on this machine with this model: a few passes over batches of several
// sizes, before the first request. Called by Stepper::create.
#pragma once

#include "base/error.hpp"
#include "engine/clock.hpp"
#include "engine/target.hpp"
#include "speculate/step_time.hpp"

namespace espalier::engine {

// Writes into pages that no request owns yet; what it leaves there is never read.
Expected<speculate::StepTime> measure_step_time(Target& target, const Clock& clock);

}  // namespace espalier::engine
