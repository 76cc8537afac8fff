// SPDX-License-Identifier: Apache-2.0
// A few threads for what takes longer than the I/O thread may: parsing, templates, tokenising. At
// most one job per connection is waiting, so the queue is bounded by their number.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace espalier::server {

class Workers {
  public:
    explicit Workers(int threads);
    ~Workers() { stop(); }
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    // Any thread. Jobs must not throw. After stop() nothing is run any more.
    void run(std::function<void()> job);
    // Waits for jobs that run, and drops those that wait.
    void stop();

  private:
    void work();

    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<std::function<void()>> jobs_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace espalier::server
