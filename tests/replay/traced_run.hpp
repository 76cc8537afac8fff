// SPDX-License-Identifier: Apache-2.0
// Random workloads of the engine's tests, run once with a recorder: the trace as text.
#pragma once

#include <string>

#include "engine/tiny_target.hpp"
#include "lossless/workload.hpp"
#include "trace/step.hpp"

namespace espalier::replay {

struct TracedRun {
    std::string text;  // the file
    engine::Family family = engine::Family::v2;
    std::int64_t tokens = 0, preemptions = 0;
};

TracedRun run_traced(std::uint64_t seed);
TracedRun run_traced(const lossless::Workload& work, engine::Family family);

}  // namespace espalier::replay
