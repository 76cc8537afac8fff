// SPDX-License-Identifier: Apache-2.0
// The flags that say how tokens are drawn and where an output ends. They only carry what was
// written: what is in range, engine::check_request says.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_config.hpp"
#include "engine/request.hpp"

namespace espalier::cli {

// Flags that prescribe a request's drafts: --draft-depth, --draft-width, --draft-nodes.
void add_draft_flags(CLI::App& command, engine::Request& request);

struct SamplingFlags {
    engine::Request request;
    std::vector<std::string> logit_bias;          // ID:BIAS
    std::map<std::string, CLI::Option*> options;  // of the sampling parameters, by their names

    void add_to(CLI::App& command);
    // The request, but for its prompt. Flags win over what the checkpoint recommends; without
    // either, greedy.
    Expected<engine::Request> make(const checkpoint::GenerationDefaults& defaults) const;
};

}  // namespace espalier::cli
