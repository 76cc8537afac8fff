// SPDX-License-Identifier: Apache-2.0
#include "engine/request.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace espalier::engine {
namespace {

// False for NaN.
Expected<void> within(std::string_view field, float value, float low, float high) {
    if (value >= low && value <= high) return {};
    return fail(ErrorKind::invalid, "{} is {}, not within {}…{}", field, value, low, high);
}

Expected<void> check_bias(const std::vector<ops::LogitBias>& biases, std::int64_t vocabulary) {
    if (static_cast<std::int64_t>(biases.size()) > kMaxLogitBias)
        return fail(ErrorKind::invalid, "logit_bias names {} tokens, at most {}", biases.size(),
                    kMaxLogitBias);
    std::vector<std::int32_t> tokens;
    for (const ops::LogitBias& bias : biases) {
        if (bias.token < 0 || bias.token >= vocabulary)
            return fail(ErrorKind::invalid, "logit_bias: token {} of a vocabulary of {}",
                        bias.token, vocabulary);
        if (!std::isfinite(bias.bias))
            return fail(ErrorKind::invalid, "logit_bias of token {} is {}", bias.token, bias.bias);
        tokens.push_back(bias.token);
    }
    std::sort(tokens.begin(), tokens.end());
    if (const auto twice = std::adjacent_find(tokens.begin(), tokens.end()); twice != tokens.end())
        return fail(ErrorKind::invalid, "logit_bias names token {} twice", *twice);
    return {};
}

}  // namespace

Expected<void> check_sampling(const SamplingOptions& options, std::int64_t vocabulary) {
    ESPALIER_RETURN_IF_ERROR(within("temperature", options.temperature, 0.0f, 100.0f));
    ESPALIER_RETURN_IF_ERROR(within("min_p", options.min_p, 0.0f, 1.0f));
    ESPALIER_RETURN_IF_ERROR(within("top_p", options.top_p, 0.0f, 1.0f));
    ESPALIER_RETURN_IF_ERROR(
        within("repetition_penalty", options.repetition_penalty, 0.01f, 100.0f));
    ESPALIER_RETURN_IF_ERROR(
        within("frequency_penalty", options.frequency_penalty, -100.0f, 100.0f));
    ESPALIER_RETURN_IF_ERROR(within("presence_penalty", options.presence_penalty, -100.0f, 100.0f));
    if (options.top_k < 0)
        return fail(ErrorKind::invalid, "top_k is {}: 0 (off) or more", options.top_k);
    return check_bias(options.logit_bias, vocabulary);
}

}  // namespace espalier::engine
