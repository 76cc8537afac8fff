// SPDX-License-Identifier: Apache-2.0
// Threads, the queue and the cache. A compile cannot be killed: its input is bounded before it
// starts (prepare.hpp), and the loops that take most of its time count what they do
// (xgrammar_log.hpp).
#include "grammar/compiler.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "grammar/byte_lru.hpp"
#include "grammar/compile.hpp"
#include "grammar/prepare.hpp"

namespace espalier::grammar {
namespace {

using Clock = std::chrono::steady_clock;
using Result = Expected<std::shared_ptr<const CompiledGrammar>>;

// Everything that the grammar depends on.
std::string key_of(const Specification& specification) {
    std::string key = fmt::format("{} {} {} {}\n", name(specification.kind), specification.strict,
                                  specification.any_whitespace, specification.text.size());
    key += specification.text;
    for (const std::string& choice : specification.choices)
        key += fmt::format("\n{} {}", choice.size(), choice);
    return key;
}

struct Job {
    std::string key;
    Specification specification;
    Prepared prepared;
    int waiting = 0;  // callers
    std::optional<Result> result{};
};

}  // namespace

bool available() { return true; }

struct Compiler::Impl {
    Impl(Vocabulary vocabulary, CompilerLimits given)
        : limits(given), compile_one(std::move(vocabulary), given), cache(given.cache_bytes) {
        for (int i = 0; i < limits.threads; ++i) threads.emplace_back([this] { work(); });
    }

    ~Impl() {
        {
            const std::lock_guard lock(mutex);
            ending = true;
        }
        wake.notify_all();
        for (std::thread& thread : threads) thread.join();
    }

    Result refuse_late(Job& job) {
        ++status.overran;
        ++status.refused;
        return fail(ErrorKind::exhausted, "{}: not compiled within {} ms: the machine is busy",
                    name(job.specification.kind), limits.wait.count());
    }

    Result wait_for(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock) {
        const auto deadline = Clock::now() + limits.wait;
        ++job->waiting;
        const bool done =
            finished.wait_until(lock, deadline, [&] { return job->result.has_value(); });
        --job->waiting;
        if (!done) return refuse_late(*job);
        return *job->result;
    }

    // From the cache, or of a compile under way.
    std::optional<Result> known(const std::string& key, std::unique_lock<std::mutex>& lock) {
        if (const auto* cached = cache.find(key)) {
            ++status.hits;
            return *cached;
        }
        const auto found = running_jobs.find(key);
        if (found == running_jobs.end()) return std::nullopt;
        ++status.hits;
        return wait_for(std::shared_ptr<Job>(found->second), lock);
    }

    void work() {
        std::unique_lock lock(mutex);
        while (true) {
            wake.wait(lock, [&] { return ending || !queue.empty(); });
            if (ending) return;
            const std::shared_ptr<Job> job = queue.front();
            queue.pop_front();
            if (job->waiting > 0) run(*job, lock);
            running_jobs.erase(job->key);
            finished.notify_all();
        }
    }

    void run(Job& job, std::unique_lock<std::mutex>& lock) {
        ++status.running;
        lock.unlock();
        const auto start = Clock::now();
        Result result = compile_one(job.specification, job.prepared);
        lock.lock();
        --status.running;
        status.seconds += std::chrono::duration<double>(Clock::now() - start).count();
        if (result) {
            ++status.compiled;
            cache.add(job.key, *result, (*result)->bytes() + job.key.size());
        } else {
            ++status.refused;
        }
        job.result = std::move(result);
    }

    const CompilerLimits limits;
    const CompileOne compile_one;
    std::mutex mutex;  // guards what follows
    std::condition_variable wake;
    std::condition_variable finished;
    std::deque<std::shared_ptr<Job>> queue;
    std::unordered_map<std::string, std::shared_ptr<Job>> running_jobs;  // queued ones too
    ByteLru<std::string, std::shared_ptr<const CompiledGrammar>> cache;
    CompilerStatus status;
    bool ending = false;
    std::vector<std::thread> threads;
};

Compiler::Compiler(Vocabulary vocabulary, CompilerLimits limits)
    : impl_(std::make_unique<Impl>(std::move(vocabulary), limits)) {}
Compiler::~Compiler() = default;

const Vocabulary& Compiler::vocabulary() const { return impl_->compile_one.vocabulary(); }

CompilerStatus Compiler::status() const {
    const std::lock_guard lock(impl_->mutex);
    CompilerStatus status = impl_->status;
    status.cached = static_cast<std::int64_t>(impl_->cache.size());
    status.cached_bytes = impl_->cache.bytes();
    status.masks = impl_->compile_one.mask_counts();
    return status;
}

Expected<std::shared_ptr<const CompiledGrammar>> Compiler::compile(
    const Specification& specification) {
    std::string key = key_of(specification);
    {
        std::unique_lock lock(impl_->mutex);
        if (auto known = impl_->known(key, lock)) return std::move(*known);
    }
    auto prepared = prepare(specification);
    std::unique_lock lock(impl_->mutex);
    if (!prepared) {
        ++impl_->status.refused;
        Error error = std::move(prepared.error());
        if (error.kind == ErrorKind::exhausted) error.kind = ErrorKind::invalid;
        return tl::unexpected<Error>(std::move(error));
    }
    // Another thread may have come with the same while this one prepared it.
    if (auto known = impl_->known(key, lock)) return std::move(*known);
    if (static_cast<int>(impl_->queue.size()) >= impl_->limits.queue) {
        ++impl_->status.refused;
        return fail(ErrorKind::exhausted, "{}: {} others wait to be compiled, which is the limit",
                    name(specification.kind), impl_->limits.queue);
    }
    const auto job = std::make_shared<Job>(Job{key, specification, std::move(*prepared)});
    impl_->running_jobs[key] = job;
    impl_->queue.push_back(job);
    impl_->wake.notify_one();
    return impl_->wait_for(job, lock);
}

}  // namespace espalier::grammar
