// SPDX-License-Identifier: Apache-2.0
// The ranks of a command's engine: this process alone, or with others that it starts or that mpirun
// started. On the first rank the load options get the channel to the others; a process that mpirun
// started as another rank follows, and ends in start().
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "engine/rank_channel.hpp"
#include "parallel/mpi_ranks.hpp"
#include "parallel/rank_processes.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::cli {

struct RankFlags {
    int count = 1;
    int timeout_seconds = 30;

    void add_to(CLI::App& command);
};

class RankWorld {
  public:
    // On the command's own thread, before it has others; outlives all that is made with `load`.
    static Expected<std::unique_ptr<RankWorld>> start(const RankFlags& flags,
                                                      runtime::LoadOptions& load);
    ~RankWorld();
    RankWorld(const RankWorld&) = delete;
    RankWorld& operator=(const RankWorld&) = delete;

    int count() const;

  private:
    RankWorld() = default;

    std::unique_ptr<parallel::RankProcesses> processes_;
    std::unique_ptr<parallel::MpiRanks> mpi_;
    std::optional<engine::RankChannel> channel_;
};

}  // namespace espalier::cli
