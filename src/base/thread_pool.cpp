// SPDX-License-Identifier: Apache-2.0
// Workers spin for a while after each run before they park: a step is ~100 runs a few microseconds
// apart, and a futex wake-up (~50 µs) between them would cost more than the work.
#include "base/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace espalier {
namespace {

constexpr int kSpins = 20000;  // ≈ 0.3–0.8 ms of pauses before a worker parks

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

}  // namespace

struct ThreadPool::State {
    Erased body = nullptr;
    void* context = nullptr;
    std::int64_t tasks = 0;
    alignas(64) std::atomic<std::uint64_t> generation{0};  // one more per run
    alignas(64) std::atomic<std::int64_t> next{0};
    // Number of workers inside the run, plus kClosed while there is none to join. The caller
    // waits for those inside only: a worker that the system keeps off its core costs its help, not
    // its time.
    alignas(64) std::atomic<std::int64_t> inside{kClosed};
    std::atomic<bool> stopping{false};
    std::mutex mutex;
    std::condition_variable wake;
    int parked = 0;              // guarded by mutex
    std::exception_ptr failure;  // guarded by mutex
    std::vector<std::thread> threads;

    static constexpr std::int64_t kClosed = std::numeric_limits<std::int64_t>::min() / 2;

    bool enter() {
        std::int64_t count = inside.load(std::memory_order_relaxed);
        while (count >= 0)
            if (inside.compare_exchange_weak(count, count + 1, std::memory_order_acquire))
                return true;
        return false;
    }

    void leave() { inside.fetch_sub(1, std::memory_order_release); }

    void work(int worker) {
        try {
            for (;;) {
                const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
                if (task >= tasks) return;
                body(context, task, worker);
            }
        } catch (...) {
            next.store(tasks, std::memory_order_relaxed);
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
        }
    }

    // Returns the new generation, or the old one when the pool is stopping.
    std::uint64_t await(std::uint64_t seen) {
        for (int spin = 0; spin < kSpins; ++spin) {
            const std::uint64_t now = generation.load(std::memory_order_acquire);
            if (now != seen || stopping.load(std::memory_order_relaxed)) return now;
            pause_briefly();
        }
        std::unique_lock lock(mutex);
        ++parked;
        wake.wait(lock, [&] { return generation.load() != seen || stopping.load(); });
        --parked;
        return generation.load();
    }

    void serve(int worker) {
        std::uint64_t seen = 0;
        for (;;) {
            const std::uint64_t now = await(seen);
            if (now == seen) return;
            seen = now;
            if (!enter()) continue;  // came too late: the run is over
            work(worker);
            leave();
        }
    }

    // Admits no more workers and waits for those inside.
    void close() {
        inside.fetch_add(kClosed, std::memory_order_acq_rel);
        // More threads than cores: give the core away now and then, or the last worker waits for a
        // time slice.
        for (int spin = 0; inside.load(std::memory_order_acquire) != kClosed; ++spin) {
            if (spin % 256 == 255) std::this_thread::yield();
            pause_briefly();
        }
    }
};

ThreadPool::ThreadPool(int workers) : workers_(workers), state_(std::make_unique<State>()) {
    CHECK(workers >= 1 && workers <= 4096, "a pool of {} workers", workers);
    for (int worker = 1; worker < workers; ++worker)
        state_->threads.emplace_back([state = state_.get(), worker] { state->serve(worker); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::run_erased(std::int64_t tasks, Erased body, void* context) {
    State& state = *state_;
    state.body = body;
    state.context = context;
    state.tasks = tasks;
    state.next.store(0, std::memory_order_relaxed);
    state.inside.store(0, std::memory_order_release);
    bool anyone_parked = false;
    {
        const std::lock_guard lock(state.mutex);
        state.generation.fetch_add(1, std::memory_order_release);
        anyone_parked = state.parked > 0;
    }
    if (anyone_parked) state.wake.notify_all();
    state.work(0);
    state.close();
    if (std::exception_ptr failure = std::exchange(state.failure, nullptr))
        std::rethrow_exception(failure);
}

}  // namespace espalier
