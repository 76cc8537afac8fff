// SPDX-License-Identifier: Apache-2.0
#include "parallel/rank_processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace espalier::parallel {
namespace {

constexpr int kEndLimitMs = 3000;  // that a rank has for ending by itself

int open_process(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// "signal 9 (Killed)", "exit code 1"
std::string end_of(const siginfo_t& info) {
    if (info.si_code == CLD_EXITED) return fmt::format("exit code {}", info.si_status);
    return fmt::format("signal {} ({})", info.si_status, strsignal(info.si_status));
}

// Between fork and exec: nothing but system calls.
[[noreturn]] void become_rank(pid_t parent, int descriptor, char* const* words) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    fcntl(descriptor, F_SETFD, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    execv("/proc/self/exe", words);
    _exit(127);
}

bool ends_within(int descriptor, int limit_ms) {
    pollfd one{descriptor, POLLIN, 0};
    return poll(&one, 1, limit_ms) > 0;
}

}  // namespace

RankProcesses::RankProcesses(std::shared_ptr<RankMemory> memory, std::chrono::seconds timeout)
    : memory_(std::move(memory)), ranks_(std::make_unique<MemoryRanks>(memory_, 0, timeout)) {}

Expected<std::unique_ptr<RankProcesses>> RankProcesses::start(int count, const Words& words,
                                                              std::chrono::seconds timeout) {
    ESPALIER_ASSIGN_OR_RETURN(RankMemory memory, RankMemory::create(count));
    std::unique_ptr<RankProcesses> made(
        new RankProcesses(std::make_shared<RankMemory>(std::move(memory)), timeout));
    made->memory_->seat(0).pid = getpid();
    for (int rank = 1; rank < count; ++rank) ESPALIER_RETURN_IF_ERROR(made->launch(rank, words));
    made->stop_watching_ = eventfd(0, EFD_CLOEXEC);
    if (made->stop_watching_ < 0)
        return fail(ErrorKind::io, "watching {} ranks: {}", count, std::strerror(errno));
    // It takes no signal that another thread waits for.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    made->watcher_ = std::thread([raw = made.get()] { raw->watch(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return made;
}

Expected<void> RankProcesses::launch(int rank, const Words& words) {
    std::vector<std::string> all = words(rank, memory_->descriptor());
    all.insert(all.begin(), "espalier");
    std::vector<char*> pointers;
    for (std::string& word : all) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) become_rank(parent, memory_->descriptor(), pointers.data());
    if (pid < 0) return fail(ErrorKind::io, "starting rank {}: {}", rank, std::strerror(errno));
    processes_.push_back({rank, pid, open_process(pid)});
    memory_->seat(rank).pid = pid;
    if (processes_.back().descriptor < 0)
        return fail(ErrorKind::io, "watching rank {}: {}", rank, std::strerror(errno));
    return {};
}

// Until the first end of a rank, or the end of watching.
void RankProcesses::watch() {
    std::vector<pollfd> waited = {{stop_watching_, POLLIN, 0}};
    for (const Process& process : processes_) waited.push_back({process.descriptor, POLLIN, 0});
    while (poll(waited.data(), waited.size(), -1) < 0 && errno == EINTR) {
    }
    if (waited.front().revents != 0 || ending_) return;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
        if (waited[i + 1].revents == 0) continue;
        siginfo_t info{};
        waitid(P_PID, static_cast<id_t>(processes_[i].pid), &info, WEXITED | WNOWAIT);
        return memory_->lose(processes_[i].rank, end_of(info));
    }
}

void RankProcesses::end_all() {
    // After a loss nothing is to be waited for; a stopped process ends by this signal alone.
    const bool killed = !ending_ || memory_->lost();
    for (const Process& process : processes_) {
        if (killed || process.descriptor < 0 || !ends_within(process.descriptor, kEndLimitMs))
            kill(process.pid, SIGKILL);
    }
    for (const Process& process : processes_) {
        while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
        }
        if (process.descriptor >= 0) close(process.descriptor);
    }
}

RankProcesses::~RankProcesses() {
    if (watcher_.joinable()) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(stop_watching_, &one, sizeof one);
        watcher_.join();
    }
    if (stop_watching_ >= 0) close(stop_watching_);
    end_all();
}

Expected<std::unique_ptr<Ranks>> join_as_process(int descriptor, int rank,
                                                 std::chrono::seconds timeout) {
    ESPALIER_ASSIGN_OR_RETURN(RankMemory memory, RankMemory::attach(descriptor));
    if (rank < 1 || rank >= memory.count())
        return fail(ErrorKind::invalid, "rank {} of {}", rank, memory.count());
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    return std::make_unique<MemoryRanks>(std::make_shared<RankMemory>(std::move(memory)), rank,
                                         timeout);
}

}  // namespace espalier::parallel
