// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace espalier::trace {
namespace {

// The format's clock is in microseconds; three digits keep every nanosecond.
std::string microseconds(std::int64_t nanoseconds) {
    const bool negative = nanoseconds < 0;
    const std::int64_t amount = negative ? -nanoseconds : nanoseconds;
    return fmt::format("{}{}.{:03}", negative ? "-" : "", amount / 1000, amount % 1000);
}

struct PhaseSpan {
    std::string_view name;
    std::int64_t begin = 0, duration = 0;
};

// Names and lengths of the phases as Times lists them.
class PhaseLister {
  public:
    PhaseLister(std::vector<PhaseSpan>& out, std::int64_t begin) : out_(out), next_(begin) {}
    void integer(std::string_view name, std::int64_t duration, std::int64_t, std::int64_t) {
        out_.push_back({name, next_, duration});
        next_ += duration;
    }
    void maybe_integer(std::string_view name, const std::optional<std::int64_t>& duration,
                       std::int64_t lo, std::int64_t hi) {
        if (duration) integer(name, *duration, lo, hi);
    }
    void maybe_object(std::string_view, const std::optional<DeviceTimes>&) {}  // beside them
    std::int64_t end() const { return next_; }

  private:
    std::vector<PhaseSpan>& out_;
    std::int64_t next_;
};

class Timeline {
  public:
    explicit Timeline(Sink& sink) : sink_(sink) {}

    Expected<void> begin(const Header& header) {
        const std::string process = fmt::format("{} ({}, {} threads)", header.model.name,
                                                header.identity.variant, header.threads);
        text_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
        add(R"({{"ph":"M","pid":1,"tid":1,"name":"process_name","args":{{"name":{}}}}})",
            quoted(process));
        add(R"({{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{{"name":"engine"}}}})");
        drafters_ = header.settings.drafters;
        return flush();
    }

    Expected<void> event(const Submission& submission) {
        for (std::int32_t choice = 0; choice < submission.choices; ++choice) {
            const std::int64_t request = submission.request + choice;
            request_edge(
                'b', request, submission.time,
                fmt::format(R"("prompt_tokens":{},"max_tokens":{},"priority":{},"id":{})",
                            submission.prompt.size(), submission.output.max_tokens,
                            submission.priority, quoted(submission.request_id.value_or(""))));
            open_.emplace(request, submission.time);
        }
        return flush();
    }

    Expected<void> event(const Cancellation& cancellation) {
        end_request(cancellation.request, cancellation.time, R"("reason":"cancelled")");
        return flush();
    }

    Expected<void> event(const Step& step) {
        std::vector<PhaseSpan> phases;
        PhaseLister lister(phases, step.begin);
        Times::fields(lister, step.times);
        std::int64_t drawn = 0;
        for (const Outcome& outcome : step.outcomes)
            drawn += static_cast<std::int64_t>(outcome.drawn.size());
        span(fmt::format("step {}", step.number), step.begin, lister.end() - step.begin,
             fmt::format(R"("rows":{},"trees":{},"drawn":{},"ended":{}{})", step.rows.size(),
                         step.trees.size(), drawn, step.ended.size(), accepted_from(step)));
        for (const PhaseSpan& phase : phases)
            if (phase.duration > 0) span(phase.name, phase.begin, phase.duration, "");
        counters(step);
        for (const Ended& ended : step.ended)
            end_request(
                ended.request, lister.end(),
                fmt::format(R"("reason":"{}","tokens":{})",
                            kReasons[static_cast<std::size_t>(ended.reason)], ended.tokens));
        last_ = std::max(last_.value_or(lister.end()), lister.end());
        return flush();
    }
    Expected<void> event(const End&) { return {}; }

    // Requests that were still there end with the trace.
    Expected<void> finish() {
        const std::map<std::int64_t, std::int64_t> left = open_;
        for (const auto& [request, since] : left)
            end_request(request, std::max(since, last_.value_or(since)),
                        R"("reason":"trace ends")");
        text_ += "]}\n";
        return flush();
    }

  private:
    template <typename... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        text_ += first_ ? "\n" : ",\n";
        first_ = false;
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    }
    static std::string quoted(const std::string& text) {
        return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    // Times count from the first line's.
    std::string time(std::int64_t nanoseconds) {
        if (!zero_) zero_ = nanoseconds;
        return microseconds(nanoseconds - *zero_);
    }
    void span(std::string_view name, std::int64_t begin, std::int64_t duration,
              std::string_view args) {
        add(R"({{"ph":"X","pid":1,"tid":1,"name":"{}","ts":{},"dur":{},"args":{{{}}}}})", name,
            time(begin), microseconds(duration), args);
    }
    void request_edge(char edge, std::int64_t request, std::int64_t when, std::string_view args) {
        add(R"({{"ph":"{}","cat":"request","id":{},"pid":1,"name":"request {}","ts":{},"args":{{{}}}}})",
            edge, request, request, time(when), args);
    }
    void end_request(std::int64_t request, std::int64_t when, std::string_view args) {
        if (open_.erase(request) > 0) request_edge('e', request, when, args);
    }
    void counter(std::string_view name, std::int64_t when, std::string_view args) {
        add(R"({{"ph":"C","pid":1,"name":"{}","ts":{},"args":{{{}}}}})", name, time(when), args);
    }
    // Accepted drafts by drafter, as arguments of the step. What the file says is only looked up.
    std::string accepted_from(const Step& step) const {
        std::map<std::int32_t, std::int64_t> counts;
        for (const Outcome& outcome : step.outcomes)
            for (const Tree& tree : step.trees) {
                if (tree.request != outcome.request) continue;
                for (std::size_t i = 1; i < outcome.path.size(); ++i)
                    if (const auto node = static_cast<std::size_t>(outcome.path[i]);
                        node < tree.from.size())
                        ++counts[tree.from[node]];
            }
        std::string text;
        for (const auto& [drafter, count] : counts) {
            const auto index = static_cast<std::size_t>(drafter);
            const std::string name =
                index < drafters_.size() ? drafters_[index] : fmt::format("drafter {}", drafter);
            text += fmt::format(",{}:{}", quoted("accepted from " + name), count);
        }
        return text;
    }
    void counters(const Step& step) {
        std::int64_t roots = 0, drafts = 0, absorbed = 0, decompressed = 0;
        for (const Row& row : step.rows) {
            if (row.nodes > 0) {
                ++roots;
                drafts += row.nodes - 1;
            } else {
                (row.form == Form::absorbed ? absorbed : decompressed) += row.q_len;
            }
        }
        counter(
            "batch tokens", step.begin,
            fmt::format(R"("roots":{},"drafts":{},"prompt absorbed":{},"prompt decompressed":{})",
                        roots, drafts, absorbed, decompressed));
        counter("pages", step.begin,
                fmt::format(R"("owned":{},"cached":{},"free":{})", step.pages.owned,
                            step.pages.cached, step.pages.free));
        counter("requests", step.begin,
                fmt::format(R"("running":{},"prefilling":{},"waiting":{})", step.queue.running,
                            step.queue.prefilling, step.queue.waiting));
    }
    Expected<void> flush() {
        const Expected<void> written = sink_.write(text_);
        text_.clear();
        return written;
    }

    Sink& sink_;
    std::string text_;
    bool first_ = true;
    std::optional<std::int64_t> zero_, last_;
    std::map<std::int64_t, std::int64_t> open_;  // requests that have not ended, by number
    std::vector<std::string> drafters_;          // names, by id
};

}  // namespace

Expected<std::int64_t> write_chrome(Reader& reader, Sink& sink) {
    Timeline timeline(sink);
    ESPALIER_RETURN_IF_ERROR(timeline.begin(reader.header()));
    std::int64_t steps = 0;
    for (;;) {
        ESPALIER_ASSIGN_OR_RETURN(const std::optional<Event> event, reader.next());
        if (!event) break;
        ESPALIER_RETURN_IF_ERROR(
            std::visit([&](const auto& value) { return timeline.event(value); }, *event));
        steps += std::holds_alternative<Step>(*event) ? 1 : 0;
    }
    ESPALIER_RETURN_IF_ERROR(timeline.finish());
    return steps;
}

}  // namespace espalier::trace
