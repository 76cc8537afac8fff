// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace espalier {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
    for (const int workers : {1, 2, 3, 8}) {
        ThreadPool pool(workers);
        for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
            std::vector<std::atomic<int>> seen(static_cast<std::size_t>(tasks));
            pool.run(tasks, [&](std::int64_t task, int worker) {
                ASSERT_LT(worker, workers);
                seen[static_cast<std::size_t>(task)]++;
            });
            for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
        }
    }
}

TEST(ThreadPool, WakesParkedWorkers) {
    ThreadPool pool(3);
    std::atomic<int> done{0};
    for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        pool.run(10, [&](std::int64_t, int) { done++; });
    }
    EXPECT_EQ(done.load(), 30);
}

TEST(ThreadPool, HandsAnExceptionToTheCallerAndGoesOn) {
    ThreadPool pool(2);
    EXPECT_THROW(pool.run(100,
                          [](std::int64_t task, int) {
                              if (task == 50) throw std::runtime_error("task 50");
                          }),
                 std::runtime_error);
    std::atomic<int> done{0};
    pool.run(10, [&](std::int64_t, int) { done++; });
    EXPECT_EQ(done.load(), 10);
}

}  // namespace
}  // namespace espalier
