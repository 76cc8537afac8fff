// SPDX-License-Identifier: Apache-2.0
#include "model/rope_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"

namespace espalier::model {
namespace {

using checkpoint::ModelConfig;
using checkpoint::YarnScaling;

double magnitude(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The dimension of `columns` whose wavelength makes `rotations` turns within the original context.
double correction_dimension(const YarnScaling& yarn, double theta, double columns,
                            double rotations) {
    const auto context = static_cast<double>(yarn.original_max_position_embeddings);
    return columns * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}  // namespace

std::array<float, 32> inverse_frequencies(const ModelConfig& config) {
    std::array<float, 32> result{};
    const auto columns = static_cast<double>(config.qk_rope_head_dim);
    CHECK(config.qk_rope_head_dim == 2 * std::ssize(result), "{} rotated columns, 64 are possible",
          config.qk_rope_head_dim);
    for (std::size_t i = 0; i < result.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(columns);
        const auto period =
            static_cast<float>(std::pow(config.rope_theta, static_cast<double>(exponent)));
        result[i] = 1.0f / period;
        if (!config.yarn) continue;
        const YarnScaling& yarn = *config.yarn;
        const double last = columns - 1;
        const double low = std::max(
            std::floor(correction_dimension(yarn, config.rope_theta, columns, yarn.beta_fast)),
            0.0);
        double high = std::min(
            std::ceil(correction_dimension(yarn, config.rope_theta, columns, yarn.beta_slow)),
            last);
        if (low == high) high += 0.001;  // as the reference does, against a division by zero
        const auto ramp =
            static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
        const float interpolated = 1.0f / (static_cast<float>(yarn.factor) * period);
        const float keep = 1.0f - ramp;  // share of the original frequency
        result[i] = interpolated * (1.0f - keep) + result[i] * keep;
    }
    return result;
}

float rope_magnitude(const ModelConfig& config) {
    if (!config.yarn) return 1.0f;
    const YarnScaling& yarn = *config.yarn;
    return static_cast<float>(magnitude(yarn.factor, yarn.mscale) /
                              magnitude(yarn.factor, yarn.mscale_all_dim));
}

float softmax_scale(const ModelConfig& config) {
    double scale = 1.0 / std::sqrt(static_cast<double>(config.query_head_dim()));
    if (config.yarn && config.yarn->mscale_all_dim != 0.0) {
        const double m = magnitude(config.yarn->factor, config.yarn->mscale_all_dim);
        scale *= m * m;
    }
    return static_cast<float>(scale);
}

}  // namespace espalier::model
