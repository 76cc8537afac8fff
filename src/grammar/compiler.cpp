// SPDX-License-Identifier: Apache-2.0
// Threads, the queue and the cache. A compile cannot be killed: its input is bounded before it
// starts (prepare.hpp), and the loops that take most of its time count what they do
// (xgrammar_log.hpp). A caller that waits is a callback with a deadline; one thread watches the
// deadlines.
#include "grammar/compiler.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/byte_lru.hpp"
#include "grammar/compile.hpp"
#include "grammar/prepare.hpp"

namespace espalier::grammar {
namespace {

using Clock = std::chrono::steady_clock;
using Done = Compiler::Done;

// Everything that the grammar depends on.
std::string key_of(const Specification& specification) {
    std::string key = fmt::format("{} {} {} {}\n", name(specification.kind), specification.strict,
                                  specification.any_whitespace, specification.text.size());
    key += specification.text;
    for (const std::string& choice : specification.choices)
        key += fmt::format("\n{} {}", choice.size(), choice);
    return key;
}

struct Waiter {
    Clock::time_point deadline;
    Done done;
};

struct Job {
    std::string key;
    Specification specification;
    Prepared prepared;
    std::deque<Waiter> waiters{};  // by deadline
};

void tell(std::deque<Waiter>& waiters, const Compiled& answer) {
    for (Waiter& waiter : waiters) waiter.done(answer);
}

}  // namespace

bool available() { return true; }

struct Compiler::Impl {
    Impl(Vocabulary vocabulary, CompilerLimits given)
        : limits(given), compile_one(std::move(vocabulary), given), cache(given.cache_bytes) {
        for (int i = 0; i < limits.threads; ++i) threads.emplace_back([this] { work(); });
        threads.emplace_back([this] { watch_deadlines(); });
    }

    tl::unexpected<Error> refuse(const Specification& specification, const std::string& why) {
        ++status.refused;
        return fail(ErrorKind::exhausted, "{}: {}", name(specification.kind), why);
    }

    void add_waiter(Job& job, Done done) {
        job.waiters.push_back({Clock::now() + limits.wait, std::move(done)});
        deadlines.notify_one();
    }

    // From the cache, or of a compile under way. False: done is not taken.
    bool answered(const std::string& key, Done& done, std::unique_lock<std::mutex>& lock) {
        if (const auto* cached = cache.find(key)) {
            ++status.hits;
            const Compiled answer = *cached;
            lock.unlock();
            done(answer);
            return true;
        }
        const auto found = running_jobs.find(key);
        if (found == running_jobs.end()) return false;
        ++status.hits;
        add_waiter(*found->second, std::move(done));
        return true;
    }

    void work() {
        std::unique_lock lock(mutex);
        while (true) {
            wake.wait(lock, [&] { return ending || !queue.empty(); });
            if (ending) return;
            const std::shared_ptr<Job> job = queue.front();
            queue.pop_front();
            if (job->waiters.empty()) {
                running_jobs.erase(job->key);
                continue;
            }
            const Compiled answer = run(*job, lock);
            running_jobs.erase(job->key);
            lock.unlock();
            tell(job->waiters, answer);
            lock.lock();
        }
    }

    Compiled run(Job& job, std::unique_lock<std::mutex>& lock) {
        ++status.running;
        lock.unlock();
        const auto start = Clock::now();
        Compiled result = compile_one(job.specification, job.prepared);
        lock.lock();
        --status.running;
        status.seconds += std::chrono::duration<double>(Clock::now() - start).count();
        if (result) {
            ++status.compiled;
            cache.add(job.key, *result, (*result)->bytes() + job.key.size());
        } else {
            ++status.refused;
        }
        return result;
    }

    void watch_deadlines() {
        std::unique_lock lock(mutex);
        while (!ending) {
            std::optional<Clock::time_point> next;
            for (const auto& [key, job] : running_jobs)
                if (!job->waiters.empty())
                    next = std::min(next.value_or(Clock::time_point::max()),
                                    job->waiters.front().deadline);
            if (next)
                deadlines.wait_until(lock, *next);
            else
                deadlines.wait(lock);
            refuse_late(lock);
        }
    }

    void refuse_late(std::unique_lock<std::mutex>& lock) {
        std::vector<std::pair<Done, Compiled>> late;
        const auto now = Clock::now();
        for (const auto& [key, job] : running_jobs)
            while (!job->waiters.empty() && job->waiters.front().deadline <= now) {
                ++status.overran;
                late.emplace_back(
                    std::move(job->waiters.front().done),
                    refuse(job->specification,
                           fmt::format("not compiled within {} ms: the machine is busy",
                                       limits.wait.count())));
                job->waiters.pop_front();
            }
        if (late.empty()) return;
        lock.unlock();
        for (const auto& [done, answer] : late) done(answer);
        late.clear();
        lock.lock();
    }

    void stop() {
        {
            const std::lock_guard lock(mutex);
            ending = true;
        }
        wake.notify_all();
        deadlines.notify_all();
        for (std::thread& thread : threads)
            if (thread.joinable()) thread.join();
        std::unique_lock lock(mutex);
        queue.clear();
        const auto left = std::exchange(running_jobs, {});
        for (const auto& [key, job] : left) {
            const Compiled answer = refuse(job->specification, kStopped);
            lock.unlock();
            tell(job->waiters, answer);
            lock.lock();
        }
    }

    static constexpr const char* kStopped = "not compiled: this program ends";

    const CompilerLimits limits;
    const CompileOne compile_one;
    std::mutex mutex;  // guards what follows
    std::condition_variable wake;
    std::condition_variable deadlines;
    std::deque<std::shared_ptr<Job>> queue;
    std::unordered_map<std::string, std::shared_ptr<Job>> running_jobs;  // queued ones too
    ByteLru<std::string, std::shared_ptr<const CompiledGrammar>> cache;
    CompilerStatus status;
    bool ending = false;
    std::vector<std::thread> threads;
};

Compiler::Compiler(Vocabulary vocabulary, CompilerLimits limits)
    : impl_(std::make_unique<Impl>(std::move(vocabulary), limits)) {}
Compiler::~Compiler() { stop(); }
void Compiler::stop() { impl_->stop(); }

const Vocabulary& Compiler::vocabulary() const { return impl_->compile_one.vocabulary(); }

CompilerStatus Compiler::status() const {
    const std::lock_guard lock(impl_->mutex);
    CompilerStatus status = impl_->status;
    status.cached = static_cast<std::int64_t>(impl_->cache.size());
    status.cached_bytes = impl_->cache.bytes();
    status.masks = impl_->compile_one.mask_counts();
    return status;
}

void Compiler::compile(const Specification& specification, Done done) {
    std::string key = key_of(specification);
    {
        std::unique_lock lock(impl_->mutex);
        if (impl_->answered(key, done, lock)) return;
    }
    auto prepared = prepare(specification);
    std::unique_lock lock(impl_->mutex);
    const auto refuse = [&](Compiled answer) {
        lock.unlock();
        done(std::move(answer));
    };
    if (!prepared) {
        ++impl_->status.refused;
        Error error = std::move(prepared.error());
        if (error.kind == ErrorKind::exhausted) error.kind = ErrorKind::invalid;
        return refuse(tl::unexpected<Error>(std::move(error)));
    }
    // Another thread may have come with the same while this one prepared it.
    if (impl_->answered(key, done, lock)) return;
    if (impl_->ending) return refuse(impl_->refuse(specification, Impl::kStopped));
    if (static_cast<int>(impl_->queue.size()) >= impl_->limits.queue)
        return refuse(impl_->refuse(
            specification,
            fmt::format("{} others wait to be compiled, which is the limit", impl_->limits.queue)));
    const auto job = std::make_shared<Job>(Job{key, specification, std::move(*prepared)});
    impl_->running_jobs[key] = job;
    impl_->queue.push_back(job);
    impl_->add_waiter(*job, std::move(done));
    impl_->wake.notify_one();
}

Compiled Compiler::compile(const Specification& specification) {
    const auto answer = std::make_shared<std::promise<Compiled>>();  // until set_value() returns
    std::future<Compiled> compiled = answer->get_future();
    compile(specification, [answer](Compiled done) { answer->set_value(std::move(done)); });
    return compiled.get();
}

}  // namespace espalier::grammar
