// SPDX-License-Identifier: Apache-2.0
// A run's report in three forms: the block that vLLM, SGLang and TokenSpeed print, JSON under their
// keys, and a page with plots. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "load/figures.hpp"
#include "load/options.hpp"
#include "load/speculation.hpp"

namespace espalier::load {

struct Report {
    LoadOptions options = {};
    std::string url = {};
    std::string date = {};                    // 20250131-235959, UTC
    double seconds = 0;                       // from the first sending to the last end
    std::vector<RequestRecord> records = {};  // of the requests that were sent, in their order
    Goodput goodput = {};
    std::optional<SpeculationCounts> speculation = {};
    std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};  // those that are reported
    std::vector<double> percentiles = {99};
};

std::string report_text(const Report& report);
// detailed: the times of every request too.
nlohmann::ordered_json report_json(const Report& report, bool detailed);
// One file without outside references, readable in light and dark.
std::string report_html(const Report& report);

// Tokens per second in the busiest second; no less than the mean, which a run of less than a second
// would exceed it by.
double peak_throughput(const Report& report, const Figures& figures);
// "ttft 500, tpot 50": the limits of goodput, in milliseconds.
std::string goodput_text(const Goodput& goodput);
// "99", "99.9".
std::string percent_text(double percent);
bool is_reported(const Report& report, const Latency& latency);
// Why requests failed, a line for each kind with its first message; empty if none did.
std::string failures_text(const Report& report);

}  // namespace espalier::load
