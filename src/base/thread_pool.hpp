// SPDX-License-Identifier: Apache-2.0
// The one thread pool: run(tasks, body) calls body(task, worker) for every task on all workers and
// returns when all are done. Which worker takes a task is not fixed, so a task's result must depend
// on the task alone.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace espalier {

class ThreadPool {
  public:
    // workers ≥ 1, the calling thread included.
    explicit ThreadPool(int workers);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int workers() const { return workers_; }

    // body: void(std::int64_t task, int worker), 0 ≤ worker < workers(). One caller at a time; not
    // re-entrant. A body that throws ends the run after the tasks under way; the first exception is
    // rethrown here.
    template <typename Body>
    void run(std::int64_t tasks, Body&& body) {
        if (tasks <= 0) return;
        if (workers_ == 1 || tasks == 1) {
            for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
            return;
        }
        run_erased(
            tasks,
            [](void* context, std::int64_t task, int worker) {
                (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
            },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

  private:
    using Erased = void (*)(void* context, std::int64_t task, int worker);
    void run_erased(std::int64_t tasks, Erased body, void* context);

    struct State;
    int workers_;
    std::unique_ptr<State> state_;
};

}  // namespace espalier
