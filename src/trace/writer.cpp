// SPDX-License-Identifier: Apache-2.0
#include "trace/writer.hpp"

#include <exception>
#include <utility>

#include "trace/line.hpp"

namespace espalier::trace {

Expected<std::unique_ptr<Writer>> Writer::create(std::unique_ptr<Sink> sink, const Header& header,
                                                 WriterLimits limits) {
    std::string line;
    append_line(line, header);
    ESPALIER_RETURN_IF_ERROR(sink->write(line));
    return std::unique_ptr<Writer>(new Writer(std::move(sink), limits));
}

Writer::Writer(std::unique_ptr<Sink> sink, WriterLimits limits)
    : sink_(std::move(sink)), limits_(limits) {
    queue_.reserve(limits.max_events);
    spare_.reserve(limits.max_events);
    thread_ = std::thread([this] { run(); });
}

Writer::~Writer() { (void)finish(); }

std::size_t Writer::numbers_in(const Event& event) {
    if (const auto* submission = std::get_if<Submission>(&event))
        return submission->prompt.size() + submission->forced_output.size();
    const auto* step = std::get_if<Step>(&event);
    if (step == nullptr) return 1;
    std::size_t count = step->rows.size() + step->ended.size();
    for (const Tree& tree : step->trees) count += 2 * tree.tokens.size();
    for (const Outcome& outcome : step->outcomes) count += 2 * outcome.drawn.size();
    return count;
}

bool Writer::write(Event event) {
    const std::size_t numbers = numbers_in(event);
    bool fits = false;
    {
        const std::lock_guard lock(mutex_);
        if (overflowed_) {
            ++status_.lost;
            return false;
        }
        // One event alone is always taken, whatever its size.
        fits = queue_.empty() || (queue_.size() < limits_.max_events &&
                                  queued_numbers_ + numbers <= limits_.max_numbers);
        if (fits) {
            queue_.push_back(std::move(event));
            queued_numbers_ += numbers;
        }
        overflowed_ = !fits;
        if (overflowed_) status_ = {"the disk is slower than the engine", status_.lost + 1};
    }
    work_.notify_one();
    return fits;
}

Step Writer::spare_step() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return {};
    Step step = std::move(spare_.back());
    spare_.pop_back();
    return step;
}

WriterStatus Writer::status() const {
    const std::lock_guard lock(mutex_);
    return status_;
}

Expected<End> Writer::finish() {
    {
        const std::lock_guard lock(mutex_);
        finishing_ = true;
    }
    work_.notify_one();
    if (thread_.joinable()) thread_.join();
    if (!written_) return tl::unexpected<Error>(written_.error());
    return end_;
}

// An exception would be memory that ran out: the trace is lost, the process goes on.
void Writer::run() {
    try {
        loop();
    } catch (const std::exception& error) {
        written_ = fail(ErrorKind::exhausted, "the trace's thread ended: {}", error.what());
        const std::lock_guard lock(mutex_);
        status_.failure = written_.error().message;
    }
}

void Writer::loop() {
    std::vector<Event> events;
    events.reserve(limits_.max_events);
    for (;;) {
        std::optional<End> end;
        {
            std::unique_lock lock(mutex_);
            for (Event& event : events)
                if (auto* step = std::get_if<Step>(&event); step && spare_.size() < 64)
                    spare_.push_back(std::move(*step));
            events.clear();
            work_.wait(lock, [this] { return finishing_ || overflowed_ || !queue_.empty(); });
            std::swap(events, queue_);
            queued_numbers_ = 0;
            if (finishing_ || overflowed_)
                end.emplace().reason = overflowed_ ? Close::overflow : Close::finished;
        }
        put(events, end);
        if (end) return;
    }
}

// After an error nothing more is tried: the disk is full or gone.
void Writer::put(const std::vector<Event>& events, std::optional<End> end) {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
    text_.clear();
    std::int64_t pending = 0;
    for (const Event& event : events) {
        append_line(text_, event);
        count(event);
        ++pending;
        if (text_.size() < kPieceBytes) continue;
        hand_over(std::exchange(pending, 0));
    }
    if (end) {
        end_.reason = end->reason;
        append_line(text_, Event(end_));
    }
    if (!text_.empty()) hand_over(pending);
}

// The text so far, in which these events are.
void Writer::hand_over(std::int64_t events) {
    if (written_) written_ = sink_->write(text_);
    text_.clear();
    if (written_) return;
    const std::lock_guard lock(mutex_);
    status_ = {written_.error().message, status_.lost + events};
}

void Writer::count(const Event& event) {
    end_.submissions += std::holds_alternative<Submission>(event) ? 1 : 0;
    end_.cancellations += std::holds_alternative<Cancellation>(event) ? 1 : 0;
    end_.steps += std::holds_alternative<Step>(event) ? 1 : 0;
}

}  // namespace espalier::trace
