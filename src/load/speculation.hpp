// SPDX-License-Identifier: Apache-2.0
// What drafts did during a run: from the server's /metrics before and after, or from the usage of
// its answers. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "load/recorder.hpp"

namespace espalier::load {

struct SpeculationCounts {
    double drafts = 0;  // steps that had drafts
    double draft_tokens = 0;
    double accepted_tokens = 0;
    std::map<std::int64_t, double> accepted_by_position = {};

    double rate_percent() const { return 100 * accepted_tokens / draft_tokens; }
    double length() const { return 1 + accepted_tokens / drafts; }
};

// From Prometheus' text, by the names that vLLM and Espalier share behind any prefix; nothing
// where it has none of them.
std::optional<SpeculationCounts> speculation_of_metrics(std::string_view metrics);

// The run's own: the difference of both readings, or of the usage where there are none (then a
// step is what drew one token and the drafts before it). Nothing where nothing was drafted.
std::optional<SpeculationCounts> speculation_of_run(const std::optional<SpeculationCounts>& before,
                                                    const std::optional<SpeculationCounts>& after,
                                                    const std::vector<RequestRecord>& records);

}  // namespace espalier::load
