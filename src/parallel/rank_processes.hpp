// SPDX-License-Identifier: Apache-2.0
// The ranks of one machine as processes: this one is the first and starts the others, each a run of
// this program with an inherited descriptor of the memory that they share. There is no port, no
// file and no name that another program could find. A process that ends is noticed at once and
// ends the exchanges of all; when this one ends, the system ends the others.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "parallel/memory_ranks.hpp"

namespace espalier::parallel {

class RankProcesses {
  public:
    // The words of a rank's command line behind the program's name.
    using Words = std::function<std::vector<std::string>(int rank, int descriptor)>;

    // On a thread that lives as long as the ranks are to: the system ends them with it.
    static Expected<std::unique_ptr<RankProcesses>> start(int count, const Words& words,
                                                          std::chrono::seconds timeout);
    // Waits for the others to end, a few seconds after expect_end(), and ends those that do not.
    ~RankProcesses();
    RankProcesses(const RankProcesses&) = delete;
    RankProcesses& operator=(const RankProcesses&) = delete;

    Ranks& ranks() { return *ranks_; }
    // From now on a rank that ends is no loss.
    void expect_end() { ending_ = true; }

  private:
    struct Process {
        int rank = 0;
        pid_t pid = 0;
        int descriptor = -1;  // readable when it has ended
    };
    RankProcesses(std::shared_ptr<RankMemory> memory, std::chrono::seconds timeout);
    Expected<void> launch(int rank, const Words& words);
    void watch();
    void end_all();

    std::shared_ptr<RankMemory> memory_;
    std::unique_ptr<MemoryRanks> ranks_;
    std::vector<Process> processes_;
    std::atomic<bool> ending_ = false;
    int stop_watching_ = -1;
    std::thread watcher_;
};

// A rank that was started so: of the inherited descriptor.
Expected<std::unique_ptr<Ranks>> join_as_process(int descriptor, int rank,
                                                 std::chrono::seconds timeout);

}  // namespace espalier::parallel
