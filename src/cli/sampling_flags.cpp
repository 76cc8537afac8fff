// SPDX-License-Identifier: Apache-2.0
#include "cli/sampling_flags.hpp"

#include <charconv>
#include <random>
#include <string_view>

namespace espalier::cli {
namespace {

Expected<accept::SamplingOptions::Bias> parse_bias(std::string_view text) {
    accept::SamplingOptions::Bias bias;
    const std::size_t colon = text.find(':');
    const auto whole = [](std::string_view part, auto& value) {
        const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
        return error == std::errc() && end == part.data() + part.size();
    };
    if (colon == std::string_view::npos || !whole(text.substr(0, colon), bias.token) ||
        !whole(text.substr(colon + 1), bias.bias))
        return fail(ErrorKind::invalid, "--logit-bias {}: not ID:BIAS, as in 42:-1.5", text);
    return bias;
}

}  // namespace

void SamplingFlags::add_to(CLI::App& command) {
    accept::SamplingOptions& sampling = request.sampling;
    accept::OutputOptions& output = request.output;
    output.max_tokens = 128;
    command
        .add_option("-n,--max-tokens", output.max_tokens,
                    "Tokens to generate at most; the context may end earlier")
        ->capture_default_str();
    command.add_option("--min-tokens", output.min_tokens, "These first ones never end the text")
        ->capture_default_str();
    command
        .add_option("--choices", request.choices,
                    "Parallel answers to the one prompt, each with noise of its own")
        ->capture_default_str();
    command.add_option("--temperature", temperature,
                       "0 is greedy; the checkpoint's own, or 0, if not given");
    command.add_option("--top-p", top_p, "Keep the most likely tokens that make up this share");
    command.add_option("--top-k", top_k, "Keep this many of the most likely tokens; 0 keeps all");
    command
        .add_option("--min-p", sampling.min_p,
                    "Drop tokens below this share of the most likely one")
        ->capture_default_str();
    command.add_option("--repetition-penalty", repetition_penalty,
                       "Divides logits of tokens in prompt or output; the checkpoint's own, or 1 "
                       "(off), if not given");
    command
        .add_option("--presence-penalty", sampling.presence_penalty,
                    "Subtracted from logits of tokens in the output; 0 is off")
        ->capture_default_str();
    command
        .add_option("--frequency-penalty", sampling.frequency_penalty,
                    "The same, times how often the token is there")
        ->capture_default_str();
    command
        .add_option("--logit-bias", logit_bias,
                    "ID:BIAS, added to a token's logit; may be repeated")
        ->allow_extra_args(false);
    command.add_option("--seed", seed, "Seed of the noise; 64 random bits, reported, if not given");
    command
        .add_option("--stop", output.stop, "Text that ends the output before it; may be repeated")
        ->allow_extra_args(false);
    command
        .add_option("--stop-token-id", output.stop_token_ids,
                    "Token that ends the output; may be repeated")
        ->allow_extra_args(false);
    command.add_flag("--include-stop", output.include_stop, "Keep what stopped the text");
    command.add_flag("--ignore-eos", output.ignore_eos, "Go on after the end-of-text token");
}

Expected<engine::Request> SamplingFlags::make(
    const checkpoint::GenerationDefaults& defaults) const {
    engine::Request made = request;
    accept::SamplingOptions& sampling = made.sampling;
    sampling.temperature =
        temperature.value_or(static_cast<float>(defaults.temperature.value_or(0.0)));
    sampling.top_p = top_p.value_or(static_cast<float>(defaults.top_p.value_or(1.0)));
    sampling.top_k = top_k.value_or(defaults.top_k.value_or(0));
    sampling.repetition_penalty =
        repetition_penalty.value_or(static_cast<float>(defaults.repetition_penalty.value_or(1.0)));
    sampling.seed =
        seed ? *seed : (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    for (const std::string& text : logit_bias) {
        ESPALIER_ASSIGN_OR_RETURN(const auto bias, parse_bias(text));
        sampling.logit_bias.push_back(bias);
    }
    return made;
}

}  // namespace espalier::cli
