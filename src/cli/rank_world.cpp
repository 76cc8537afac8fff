// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_world.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "parallel/mpi_ranks.hpp"
#include "runtime/follow.hpp"

namespace espalier::cli {
namespace {

constexpr const char* kFollowRank = "follow-rank";

// Cores that this process may run on.
int cores_here() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

// A number of threads, of each rank, that was asked for; otherwise cores are dealt.
int threads_of(int asked, int cores, int ranks) {
    if (asked > 0 || std::getenv("OMP_NUM_THREADS") != nullptr) return asked;
    return std::max(1, cores / ranks);
}

// Signals that end the first rank after its requests, which need the others up to then.
void outlive_signals() {
    for (const int ending : {SIGINT, SIGTERM, SIGHUP}) std::signal(ending, SIG_IGN);
}

struct FollowFlags {
    int memory = -1, rank = 0, timeout_seconds = 30;
};

Expected<void> follow_rank(const FollowFlags& flags) {
    outlive_signals();
    const std::chrono::seconds timeout(flags.timeout_seconds);
    ESPALIER_ASSIGN_OR_RETURN(const auto ranks,
                              parallel::join_as_process(flags.memory, flags.rank, timeout));
    try {
        if (runtime::follow(*ranks, timeout)) return {};
    } catch (const parallel::RankLost&) {
    }
    std::_Exit(1);  // the first rank says why
}

// A rank that mpirun started, to the end of its process. Nothing hears of a failure but mpirun, so
// that this rank says it itself.
[[noreturn]] void follow_mpi(std::unique_ptr<parallel::MpiRanks> ranks,
                             std::chrono::seconds timeout) {
    outlive_signals();
    std::string failure;
    try {
        if (const auto done = runtime::follow(*ranks, timeout); !done)
            failure = done.error().message;
    } catch (const std::exception& error) {
        failure = error.what();
    }
    if (!failure.empty()) {
        fmt::print(stderr, "espalier: {}: {}\n", ranks->name(ranks->rank()), failure);
        std::_Exit(1);
    }
    ranks.reset();
    std::exit(0);
}

// mpirun binds each of two ranks to one core unless it is told otherwise.
void note_affinity(const parallel::Ranks& ranks, int threads) {
    const int cores = cores_here();
    if (threads > cores)
        fmt::print(stderr,
                   "espalier: {}: {} threads share {} of the machine's {} cores; mpirun "
                   "--bind-to none lets them have all\n",
                   ranks.name(ranks.rank()), threads, cores, sysconf(_SC_NPROCESSORS_ONLN));
}

Expected<std::unique_ptr<parallel::MpiRanks>> join_mpi(const parallel::MpiWorld& world,
                                                       const RankFlags& flags,
                                                       runtime::LoadOptions& load) {
    if (flags.count > 1 && flags.count != world.count)
        return fail_field(ErrorKind::invalid, "tensor_parallel_size",
                          "{}, but mpirun started {} ranks", flags.count, world.count);
    const std::chrono::seconds timeout(flags.timeout_seconds);
    ESPALIER_ASSIGN_OR_RETURN(auto ranks, parallel::MpiRanks::join(timeout));
    load.threads =
        threads_of(load.threads, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), world.on_machine);
    note_affinity(*ranks, load.threads);
    if (ranks->rank() > 0) follow_mpi(std::move(ranks), timeout);
    return ranks;
}

}  // namespace

void RankFlags::add_to(CLI::App& command) {
    command
        .add_option("--tensor-parallel-size,--tp", count,
                    "Processes that hold the model, the ranks, on the CPU: this one starts the "
                    "others, unless mpirun did. The same text for any number")
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
    std::unique_ptr<RankWorld> made(new RankWorld);
    const auto mpi = parallel::mpi_world();
    if (flags.count == 1 && !mpi) return made;
    if (load.device != DeviceKind::cpu)
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{}, but the model runs on a GPU: several ranks are for the CPU",
                          mpi ? mpi->count : flags.count);
    const std::chrono::seconds timeout(flags.timeout_seconds);
    if (mpi) {
        ESPALIER_ASSIGN_OR_RETURN(made->mpi_, join_mpi(*mpi, flags, load));
        made->channel_.emplace(*made->mpi_, timeout);
    } else {
        load.threads = threads_of(load.threads, cores_here(), flags.count);
        const auto words = [&](int rank, int descriptor) -> std::vector<std::string> {
            const std::string seconds = std::to_string(flags.timeout_seconds);
            return {kFollowRank, "--memory",           std::to_string(descriptor),
                    "--rank",    std::to_string(rank), "--rank-timeout-seconds",
                    seconds};
        };
        ESPALIER_ASSIGN_OR_RETURN(made->processes_,
                                  parallel::RankProcesses::start(flags.count, words, timeout));
        made->channel_.emplace(made->processes_->ranks(), timeout);
    }
    load.channel = &*made->channel_;
    return made;
}

int RankWorld::count() const { return channel_ ? channel_->ranks().count() : 1; }

RankWorld::~RankWorld() {
    if (!channel_) return;
    if (processes_) processes_->expect_end();
    channel_->send_end(engine::Command::stop);
}

// The command that RankWorld starts; not one of a user's.
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
