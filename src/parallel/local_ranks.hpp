// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: what tests and sanitizers run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "parallel/rank_memory.hpp"
#include "parallel/ranks.hpp"

namespace espalier::parallel {

struct LocalOptions {
    std::size_t window_bytes = RankMemory::kWindowBytes;
    std::chrono::seconds timeout{30};
};

// Runs the body on a thread per rank and returns when all have ended. A body that throws releases
// the others; the first failure is thrown here.
void run_local_ranks(int count, const std::function<void(Ranks&)>& body,
                     const LocalOptions& options = {});

}  // namespace espalier::parallel
