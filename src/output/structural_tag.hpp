// SPDX-License-Identifier: Apache-2.0
// Parts of a structural tag, the JSON in which the grammar of calls is written.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace espalier::output {

inline nlohmann::ordered_json sequence(nlohmann::ordered_json elements) {
    return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

}  // namespace espalier::output
