// SPDX-License-Identifier: Apache-2.0
// Writes a trace without holding up the engine: events go into a bounded queue, and a thread of the
// writer's own turns them into lines. When the disk cannot keep up and the queue is full, the trace
// ends there: what is queued is still written, then an end line that says so, and nothing after.
// (A trace with a hole could not be run again beyond it.)
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "trace/sink.hpp"
#include "trace/step.hpp"

namespace espalier::trace {

struct WriterLimits {
    std::size_t max_events = 4096;
    // The most numbers (tokens, rows, nodes) in the queue: 32 MB at 4 to 8 bytes each.
    std::size_t max_numbers = std::size_t{1} << 22;
};

struct WriterStatus {
    std::string failure;    // why the trace has ended early; empty: it has not
    std::int64_t lost = 0;  // events that came and are not in the file
};

class Writer {
  public:
    static Expected<std::unique_ptr<Writer>> create(std::unique_ptr<Sink> sink,
                                                    const Header& header, WriterLimits limits = {});
    ~Writer();  // as finish(), its error dropped
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    // From one thread. Waits for no disk; returns false when the trace has ended early.
    bool write(Event event);
    // A step that was written, to be filled again: its lists keep their memory.
    Step spare_step();

    // From any thread, at any time.
    WriterStatus status() const;
    // No write may follow. Waits until all is written. Returns the end line, or the operating
    // system's error.
    Expected<End> finish();

  private:
    Writer(std::unique_ptr<Sink> sink, WriterLimits limits);
    void run();
    void loop();
    void put(const std::vector<Event>& events, std::optional<End> end);
    void hand_over(std::int64_t events);
    void count(const Event& event);
    static std::size_t numbers_in(const Event& event);

    std::unique_ptr<Sink> sink_;
    const WriterLimits limits_;

    mutable std::mutex mutex_;
    std::condition_variable work_;
    WriterStatus status_;
    std::vector<Event> queue_;
    std::vector<Step> spare_;
    std::size_t queued_numbers_ = 0;
    bool overflowed_ = false;
    bool finishing_ = false;

    // Used by the writing thread alone.
    std::string text_;
    Expected<void> written_;
    End end_;
    std::thread thread_;
};

}  // namespace espalier::trace
