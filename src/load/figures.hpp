// SPDX-License-Identifier: Apache-2.0
// What the records of a run come to, as vLLM's serving benchmark defines each figure. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "load/recorder.hpp"

namespace espalier::load {

// Limits that a request must keep to count for goodput, in milliseconds.
struct Goodput {
    std::optional<double> ttft = {}, tpot = {}, e2el = {};
    bool asked() const { return ttft || tpot || e2el; }
};
// "ttft:500", "tpot:50", "e2el:5000".
Expected<Goodput> parse_goodput(const std::vector<std::string>& words);

// Over the requests that completed.
struct Figures {
    std::int64_t completed = 0, failed = 0, good = 0;
    std::int64_t input_tokens = 0, output_tokens = 0;
    std::int64_t guessed = 0;  // completed requests whose tokens the server did not count
    // Milliseconds, ascending. Time to first token (from sending to the first piece of text), per
    // output token after the first, between pieces of text, from sending to the end.
    std::vector<double> ttft, tpot, itl, e2el;
    // In each second of the run. Tokens of an answer are shared evenly among its pieces.
    std::vector<double> tokens_by_second;
    double peak_output = 0;  // tokens in the busiest second
    std::int64_t peak_under_way = 0;
    std::array<std::int64_t, client::kFailureKinds> failures = {};
};

Figures figures_of(const std::vector<RequestRecord>& records, const Goodput& goodput);

// Times at which the number of requests under way changes, and the number from then on.
struct LevelChange {
    double seconds;
    std::int64_t level;
};
std::vector<LevelChange> under_way_over_time(const std::vector<RequestRecord>& records);

// Interpolated linearly between neighbours, as numpy does; 0 of an empty list.
double percentile(const std::vector<double>& ascending, double percent);
double mean(const std::vector<double>& values);
double deviation(const std::vector<double>& values);  // of all of them, not of a sample

// The four latencies by their names: "ttft", "TTFT", "Time to First Token".
struct Latency {
    const char* key;
    const char* name;
    const char* title;
    std::vector<double> Figures::*values;
};
inline constexpr std::array<Latency, 4> kLatencies = {{
    {"ttft", "TTFT", "Time to First Token", &Figures::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &Figures::tpot},
    {"itl", "ITL", "Inter-token Latency", &Figures::itl},
    {"e2el", "E2EL", "End-to-end Latency", &Figures::e2el},
}};

}  // namespace espalier::load
