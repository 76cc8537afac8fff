// SPDX-License-Identifier: Apache-2.0
// A row's layer norm: one text for the reference and the CPU, since rows are short (an index key
// has 128 columns) and sums in double leave no choice of order to speak of.
#pragma once

#include <cmath>
#include <cstdint>

namespace espalier::ops {

// out may be x.
inline void plain_layer_norm(const float* x, std::int64_t columns, const float* weight,
                             const float* bias, float epsilon, float* out) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < columns; ++d) sum += static_cast<double>(x[d]);
    const double mean = sum / static_cast<double>(columns);
    double squares = 0.0;
    for (std::int64_t d = 0; d < columns; ++d) {
        const double centred = static_cast<double>(x[d]) - mean;
        squares += centred * centred;
    }
    const double factor =
        1.0 / std::sqrt(squares / static_cast<double>(columns) + static_cast<double>(epsilon));
    for (std::int64_t d = 0; d < columns; ++d)
        out[d] = static_cast<float>((static_cast<double>(x[d]) - mean) * factor *
                                        static_cast<double>(weight[d]) +
                                    static_cast<double>(bias[d]));
}

}  // namespace espalier::ops
