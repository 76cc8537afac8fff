// SPDX-License-Identifier: Apache-2.0
// One way of drafting, as bench engine compares several: who drafts, what its requests prescribe,
// and how draft models draw.
//
//   NAMES[:DEPTH[xWIDTH][/NODES]][@plain|@coupled]     mtp+ngram, mtp:4, eagle3:4x4/8@coupled
//
// NAMES are drafters joined by +. Without numbers, what pays is drafted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/request.hpp"
#include "engine/speculation.hpp"

namespace espalier::cli {

struct DraftSetting {
    std::vector<std::string> drafters;
    std::int32_t depth = 0, width = 0, nodes = 0;
    engine::Coupling coupling = engine::Coupling::coupled;

    static Expected<DraftSetting> parse(const std::string& text);
    bool off() const { return drafters == std::vector<std::string>{"off"}; }
    // Drafts of the request as the setting has them; off has none to prescribe.
    void apply_to(engine::Request& request) const;
};

}  // namespace espalier::cli
