// SPDX-License-Identifier: Apache-2.0
#include "accept/sampling_parameters.hpp"

#include <algorithm>
#include <cmath>

namespace espalier::accept {
namespace {

// Comparisons are written so that a NaN fails them.
Expected<void> check_within(const char* field, float value, float least, float most) {
    if (value >= least && value <= most) return {};
    return fail(ErrorKind::invalid, "{}: {}, not within {}…{}", field, value, least, most);
}

Expected<void> check_above_zero(const char* field, float value, float most) {
    if (value > 0.0f && value <= most) return {};
    return fail(ErrorKind::invalid, "{}: {}, not above 0 and at most {}", field, value, most);
}

Expected<void> check_numbers(const SamplingOptions& options) {
    ESPALIER_RETURN_IF_ERROR(check_within("temperature", options.temperature, 0.0f, 100.0f));
    ESPALIER_RETURN_IF_ERROR(check_above_zero("top_p", options.top_p, 1.0f));
    if (options.top_k < -1)
        return fail(ErrorKind::invalid, "top_k: {}, at least 0 (or -1: off)", options.top_k);
    ESPALIER_RETURN_IF_ERROR(check_within("min_p", options.min_p, 0.0f, 1.0f));
    ESPALIER_RETURN_IF_ERROR(
        check_above_zero("repetition_penalty", options.repetition_penalty, 100.0f));
    ESPALIER_RETURN_IF_ERROR(
        check_within("presence_penalty", options.presence_penalty, -2.0f, 2.0f));
    return check_within("frequency_penalty", options.frequency_penalty, -2.0f, 2.0f);
}

// Ascending ids, so that a repeated one is found and neighbours lie together in memory.
Expected<std::vector<ops::LogitBias>> check_biases(const std::vector<SamplingOptions::Bias>& biases,
                                                   std::int64_t vocabulary) {
    const auto count = static_cast<std::int64_t>(biases.size());
    if (count > kMaxLogitBiases)
        return fail(ErrorKind::invalid, "logit_bias: {} entries, at most {}", count,
                    kMaxLogitBiases);
    std::vector<ops::LogitBias> checked;
    checked.reserve(biases.size());
    for (const SamplingOptions::Bias& entry : biases) {
        if (entry.token < 0 || entry.token >= vocabulary)
            return fail(ErrorKind::invalid, "logit_bias: {} is not an id of the vocabulary of {}",
                        entry.token, vocabulary);
        if (!(std::abs(entry.bias) <= 100.0f))
            return fail(ErrorKind::invalid, "logit_bias[{}]: {}, not within -100…100", entry.token,
                        entry.bias);
        checked.push_back({static_cast<std::int32_t>(entry.token), entry.bias});
    }
    std::sort(checked.begin(), checked.end(),
              [](const auto& a, const auto& b) { return a.token < b.token; });
    const auto repeated =
        std::adjacent_find(checked.begin(), checked.end(),
                           [](const auto& a, const auto& b) { return a.token == b.token; });
    if (repeated != checked.end())
        return fail(ErrorKind::invalid, "logit_bias: id {} twice, with {} and {}", repeated->token,
                    repeated->bias, std::next(repeated)->bias);
    return checked;
}

}  // namespace

Expected<SamplingParameters> SamplingParameters::make(const SamplingOptions& options,
                                                      std::int64_t vocabulary) {
    ESPALIER_RETURN_IF_ERROR(check_numbers(options));
    SamplingParameters made;
    ESPALIER_ASSIGN_OR_RETURN(made.logit_bias_, check_biases(options.logit_bias, vocabulary));
    made.node_ = {
        .temperature = options.temperature,
        .min_p = options.min_p,
        .top_p = options.top_p,
        // Beyond the vocabulary it keeps everything, as off does.
        .top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(options.top_k, 0, vocabulary)),
        .seed = options.seed,
        .logit_bias = made.logit_bias_,
        .repetition_penalty = options.repetition_penalty,
        .frequency_penalty = options.frequency_penalty,
        .presence_penalty = options.presence_penalty};
    return made;
}

bool SamplingParameters::counts_tokens() const {
    return node_.repetition_penalty != 1.0f || node_.presence_penalty != 0.0f ||
           node_.frequency_penalty != 0.0f;
}

}  // namespace espalier::accept
