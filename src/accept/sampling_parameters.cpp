// SPDX-License-Identifier: Apache-2.0
#include "accept/sampling_parameters.hpp"

#include <algorithm>
#include <cmath>

namespace espalier::accept {
namespace {

// Keeps the first number that is out of its range. Comparisons are written so that a NaN fails.
struct RangeCheck {
    Expected<void> result;

    template <typename Number>
    void operator()(const Parameter& parameter, const Number& value) {
        const auto number = static_cast<double>(value);
        const bool above =
            parameter.above_least ? number > parameter.least : number >= parameter.least;
        if (!result || (above && number <= parameter.most)) return;
        if (std::isinf(parameter.most))
            result = fail_field(ErrorKind::invalid, parameter.name, "{}, at least {}", value,
                                parameter.least);
        else if (parameter.above_least)
            result =
                fail_field(ErrorKind::invalid, parameter.name, "{}, not above {} and at most {}",
                           value, parameter.least, parameter.most);
        else
            result = fail_field(ErrorKind::invalid, parameter.name, "{}, not within {}…{}", value,
                                parameter.least, parameter.most);
    }
    void operator()(const Parameter&, std::uint64_t) {}  // a seed may be anything
    void operator()(const Parameter&, const std::vector<SamplingOptions::Bias>&) {}
};

// Ascending ids, so that a repeated one is found and neighbours lie together in memory.
Expected<std::vector<ops::LogitBias>> check_biases(const std::vector<SamplingOptions::Bias>& biases,
                                                   std::int64_t vocabulary) {
    const auto count = static_cast<std::int64_t>(biases.size());
    if (count > kMaxLogitBiases)
        return fail_field(ErrorKind::invalid, "logit_bias", "{} entries, at most {}", count,
                          kMaxLogitBiases);
    std::vector<ops::LogitBias> checked;
    checked.reserve(biases.size());
    for (const SamplingOptions::Bias& entry : biases) {
        if (entry.token < 0 || entry.token >= vocabulary)
            return fail_field(ErrorKind::invalid, "logit_bias",
                              "{} is not an id of the vocabulary of {}", entry.token, vocabulary);
        if (!(std::abs(entry.bias) <= 100.0f))
            return fail_field(ErrorKind::invalid, fmt::format("logit_bias[{}]", entry.token),
                              "{}, not within -100…100", entry.bias);
        checked.push_back({static_cast<std::int32_t>(entry.token), entry.bias});
    }
    std::sort(checked.begin(), checked.end(),
              [](const auto& a, const auto& b) { return a.token < b.token; });
    const auto repeated =
        std::adjacent_find(checked.begin(), checked.end(),
                           [](const auto& a, const auto& b) { return a.token == b.token; });
    if (repeated != checked.end())
        return fail_field(ErrorKind::invalid, "logit_bias", "id {} twice, with {} and {}",
                          repeated->token, repeated->bias, std::next(repeated)->bias);
    return checked;
}

}  // namespace

Expected<SamplingParameters> SamplingParameters::make(const SamplingOptions& options,
                                                      std::int64_t vocabulary) {
    RangeCheck check;
    SamplingOptions::parameters(check, options);
    ESPALIER_RETURN_IF_ERROR(check.result);
    SamplingParameters made;
    ESPALIER_ASSIGN_OR_RETURN(made.logit_bias_, check_biases(options.logit_bias, vocabulary));
    made.draw_ = {
        .temperature = options.temperature,
        .min_p = options.min_p,
        .top_p = options.top_p,
        // Beyond the vocabulary it keeps everything, as off does.
        .top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(options.top_k, 0, vocabulary)),
        .repetition_penalty = options.repetition_penalty,
        .frequency_penalty = options.frequency_penalty,
        .presence_penalty = options.presence_penalty,
        .seed = options.seed};
    return made;
}

}  // namespace espalier::accept
