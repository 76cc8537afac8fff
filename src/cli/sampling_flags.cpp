// SPDX-License-Identifier: Apache-2.0
#include "cli/sampling_flags.hpp"

#include <algorithm>
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

std::string flag_of(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return "--" + name;
}

// A flag for each parameter of a request's sampling.
struct ParameterFlags {
    CLI::App& command;
    SamplingFlags& flags;

    template <typename T>
    void operator()(const accept::Parameter& parameter, T& value) const {
        CLI::Option* option = command.add_option(flag_of(parameter.name), value, parameter.help);
        if (!parameter.decided_elsewhere) option->capture_default_str();
        flags.options[parameter.name] = option;
    }
    void operator()(const accept::Parameter& parameter,
                    std::vector<accept::SamplingOptions::Bias>&) const {
        flags.options[parameter.name] =
            command.add_option(flag_of(parameter.name), flags.logit_bias, parameter.help)
                ->allow_extra_args(false);
    }
};

}  // namespace

void add_draft_flags(CLI::App& command, engine::Request& request) {
    const auto number = [&](const char* name, std::int32_t& value, const char* help) {
        command.add_option(name, value, help)->capture_default_str();
    };
    number("--draft-depth", request.draft_depth,
           "Levels of drafts in every step; 0: as many as pay");
    number("--draft-width", request.draft_width,
           "Nodes of each level that a draft model goes on from; 0: as many as pay");
    number("--draft-nodes", request.draft_nodes,
           "Drafts verified in every step; 0: as many as pay");
}

void SamplingFlags::add_to(CLI::App& command) {
    accept::OutputOptions& output = request.output;
    output.max_tokens = 128;
    command
        .add_option("-n,--max-tokens", output.max_tokens,
                    "Tokens to generate at most; the context may end earlier")
        ->capture_default_str();
    command.add_option("--min-tokens", output.min_tokens, "First tokens that never end the text")
        ->capture_default_str();
    command
        .add_option("--choices", request.choices, "Parallel answers, each with noise of its own")
        ->capture_default_str();
    accept::SamplingOptions::parameters(ParameterFlags{command, *this}, request.sampling);
    command
        .add_option("--stop", output.stop, "Text that ends the output before it; may be repeated")
        ->allow_extra_args(false);
    command
        .add_option("--stop-token-id", output.stop_token_ids,
                    "Token that ends the output; may be repeated")
        ->allow_extra_args(false);
    command.add_flag("--include-stop", output.include_stop, "Keep the text or token that stopped");
    command.add_flag("--ignore-eos", output.ignore_eos, "No end at the end-of-text token");
    add_draft_flags(command, request);
}

Expected<engine::Request> SamplingFlags::make(
    const checkpoint::GenerationDefaults& defaults) const {
    engine::Request made = request;
    accept::SamplingOptions& sampling = made.sampling;
    const auto given = [this](const char* name) { return options.at(name)->count() > 0; };
    if (!given("temperature"))
        sampling.temperature = static_cast<float>(defaults.temperature.value_or(0.0));
    if (!given("top_p")) sampling.top_p = static_cast<float>(defaults.top_p.value_or(1.0));
    if (!given("top_k")) sampling.top_k = defaults.top_k.value_or(0);
    if (!given("repetition_penalty"))
        sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1.0));
    if (!given("min_p")) sampling.min_p = static_cast<float>(defaults.min_p.value_or(0.0));
    if (!given("seed"))
        sampling.seed = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    for (const std::string& text : logit_bias) {
        ESPALIER_ASSIGN_OR_RETURN(const auto bias, parse_bias(text));
        sampling.logit_bias.push_back(bias);
    }
    return made;
}

}  // namespace espalier::cli
