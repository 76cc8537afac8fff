// SPDX-License-Identifier: Apache-2.0
// Random workloads of the engine's tests, run once with a recorder: the trace as text.
#pragma once

#include <string>

#include "engine/workload.hpp"
#include "trace/step.hpp"

namespace espalier::replay {

struct TracedRun {
    std::string text;  // the file
    std::int64_t tokens = 0, preemptions = 0;
};

trace::Header header_of(const engine::Workload& work);
TracedRun run_traced(const engine::Workload& work);

}  // namespace espalier::replay
