// SPDX-License-Identifier: Apache-2.0
// One request through an engine, to its end.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.hpp"

namespace espalier::cli {

struct Continuation {
    std::vector<std::int32_t> tokens;  // of the first choice
    accept::Usage usage;
    double seconds = 0;  // from the first token to the last
};

// watch: told of the first choice's output as it comes. An interrupted request is an error.
Expected<Continuation> continue_request(engine::Engine& engine, const engine::Request& request,
                                        const std::function<void(const accept::Emission&)>& watch);

}  // namespace espalier::cli
