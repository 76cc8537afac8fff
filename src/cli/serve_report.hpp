// SPDX-License-Identifier: Apache-2.0
// What a run of bench serve comes to: the block of figures that vLLM, SGLang and TokenSpeed print,
// and the same as JSON under their keys. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/serve_load.hpp"

namespace espalier::cli {

// What a request must keep to count for goodput, in milliseconds.
struct Goodput {
    std::optional<double> ttft, tpot, e2el;
    bool asked() const { return ttft || tpot || e2el; }
};
// "ttft:500", "tpot:50", "e2el:5000"
Expected<Goodput> parse_goodput(const std::vector<std::string>& words);

// Counters of the server's /metrics over the run; absent where it has none.
struct SpeculationCounts {
    double drafts = 0;
    double draft_tokens = 0;
    double accepted_tokens = 0;
};

struct ServeReport {
    ServeLoad load = {};
    ServeRun run = {};
    Goodput goodput = {};
    std::optional<SpeculationCounts> speculation = {};
    std::string date = {};

    std::string text() const;
    nlohmann::ordered_json json(bool detailed) const;
};

// By straight line between the nearest two; 0 of nothing.
double percentile(std::vector<double> values, double percent);

}  // namespace espalier::cli
