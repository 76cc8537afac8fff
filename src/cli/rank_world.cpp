// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cli/command.hpp"
#include "runtime/follow.hpp"

namespace espalier::cli {
namespace {

constexpr const char* kFollowRank = "follow-rank";

// Cores are dealt unless a number of threads, of each rank, is asked for.
int threads_of(int count) {
    if (std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / count);
}

struct FollowFlags {
    int memory = -1, rank = 0, timeout_seconds = 30;
};

// Signals that end the first rank after its requests, which need the others up to then.
Expected<void> follow_rank(const FollowFlags& flags) {
    for (const int ending : {SIGINT, SIGTERM, SIGHUP}) std::signal(ending, SIG_IGN);
    const std::chrono::seconds timeout(flags.timeout_seconds);
    ESPALIER_ASSIGN_OR_RETURN(const auto ranks,
                              parallel::join_as_process(flags.memory, flags.rank, timeout));
    try {
        if (runtime::follow(*ranks, timeout)) return {};
    } catch (const parallel::RankLost&) {
    }
    std::_Exit(1);  // the first rank says why
}

}  // namespace

void RankFlags::add_to(CLI::App& command) {
    command
        .add_option("--tensor-parallel-size,--tp", count,
                    "Processes that hold the model, the ranks, on the CPU: this one starts the "
                    "others. The same text for any number")
        ->check(CLI::Range(1, parallel::kMaxRanks))
        ->capture_default_str();
    command
        .add_option("--rank-timeout-seconds", timeout_seconds,
                    "Seconds without an answer after which a rank is taken for lost, and all end; "
                    "0: never")
        ->check(CLI::Range(0, 86400))
        ->capture_default_str();
}

Expected<std::unique_ptr<RankWorld>> RankWorld::start(const RankFlags& flags,
                                                      runtime::LoadOptions& load) {
    std::unique_ptr<RankWorld> world(new RankWorld);
    if (flags.count == 1) return world;
    if (load.device != DeviceKind::cpu)
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{}, but the model runs on a GPU: several ranks are for the CPU",
                          flags.count);
    if (load.threads == 0) load.threads = threads_of(flags.count);
    const auto words = [&](int rank, int descriptor) -> std::vector<std::string> {
        return {kFollowRank,
                "--memory",
                std::to_string(descriptor),
                "--rank",
                std::to_string(rank),
                "--rank-timeout-seconds",
                std::to_string(flags.timeout_seconds)};
    };
    ESPALIER_ASSIGN_OR_RETURN(world->processes_,
                              parallel::RankProcesses::start(
                                  flags.count, words, std::chrono::seconds(flags.timeout_seconds)));
    world->channel_.emplace(world->processes_->ranks());
    load.channel = &*world->channel_;
    return world;
}

RankWorld::~RankWorld() {
    if (!channel_) return;
    processes_->expect_end();
    channel_->send_end(engine::Command::stop);
}

// What RankWorld starts; no command of a user's.
Run add_follow_rank(CLI::App& app) {
    const auto flags = std::make_shared<FollowFlags>();
    CLI::App* command = app.add_subcommand(kFollowRank, "A rank that another process started");
    command->group("");
    command->add_option("--memory", flags->memory)->required();
    command->add_option("--rank", flags->rank)->required();
    command->add_option("--rank-timeout-seconds", flags->timeout_seconds)->required();
    return [flags] { return follow_rank(*flags); };
}

}  // namespace espalier::cli
