// SPDX-License-Identifier: Apache-2.0
// Queries that grow with their position, against attention that thins out over long texts.
#pragma once

#include <cmath>
#include <cstdint>

namespace espalier::ops {

struct QueryScaling {
    double beta = 0.0;
    std::int32_t positions = 0;  // 0: queries stay as they are

    // Factor of a query at this position, rounded once.
    float at(std::int32_t position) const {
        return static_cast<float>(1.0 + beta * std::log(1.0 + position / positions));
    }
};

}  // namespace espalier::ops
