// SPDX-License-Identifier: Apache-2.0
// How a request wants its tokens drawn, as it states it. Each parameter stands once in
// SamplingOptions::parameters(), with all that is known about it: limits and errors, the flag and
// its help, what a trace writes and reads, and the values that random workloads take all go by that
// list. ops/sampling.hpp says what each number does. Plain data.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace espalier::accept {

struct Parameter {
    const char* name;  // in requests, traces and errors; the flag is --name, with hyphens
    const char* help;  // of the flag
    // The accepted range: least (excluded if above_least) … most. Lists and seeds have none.
    double least = 0.0;
    double most = std::numeric_limits<double>::infinity();
    bool above_least = false;
    // Range of most requests' values: random workloads draw from here.
    double usual_least = 0.0;
    double usual_most = 0.0;
    // A request that says nothing leaves it to its checkpoint or chance, not to the default here.
    bool decided_elsewhere = false;
};

struct SamplingOptions {
    struct Bias {
        std::int64_t token = 0;
        float bias = 0.0f;
        bool operator==(const Bias&) const = default;
        template <typename Visitor, typename Self>
        static void fields(Visitor& visit, Self& self) {  // as in trace/events.hpp
            visit.integer("token", self.token, 0, std::numeric_limits<std::int32_t>::max());
            visit.real("bias", self.bias);
        }
    };
    float temperature = 1.0f;
    float top_p = 1.0f;
    std::int64_t top_k = 0;
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    std::vector<Bias> logit_bias{};
    std::uint64_t seed = 0;  // callers without one draw 64 random bits and report them
    bool operator==(const SamplingOptions&) const = default;

    // visit(parameter, value) for each.
    template <typename Visitor, typename Self>
    static void parameters(Visitor&& visit, Self& self);
};

template <typename Visitor, typename Self>
void SamplingOptions::parameters(Visitor&& visit, Self& self) {
    visit(Parameter{.name = "temperature",
                    .help = "Temperature, 0: greedy; default: the checkpoint's, or 0",
                    .least = 0.0,
                    .most = 100.0,
                    .usual_least = 0.1,
                    .usual_most = 2.0,
                    .decided_elsewhere = true},
          self.temperature);
    visit(Parameter{.name = "top_p",
                    .help = "Probability of the most likely tokens that are kept",
                    .least = 0.0,
                    .most = 1.0,
                    .above_least = true,
                    .usual_least = 0.05,
                    .usual_most = 0.95,
                    .decided_elsewhere = true},
          self.top_p);
    visit(Parameter{.name = "top_k",
                    .help = "Number of most likely tokens that are kept; 0: all",
                    .least = -1.0,  // off, as 0 is
                    .usual_least = 1.0,
                    .usual_most = 20.0,
                    .decided_elsewhere = true},
          self.top_k);
    visit(Parameter{.name = "min_p",
                    .help = "Share of the most likely token's probability below which tokens are "
                            "dropped; default: the checkpoint's, or 0 (off)",
                    .least = 0.0,
                    .most = 1.0,
                    .usual_least = 0.02,
                    .usual_most = 0.4,
                    .decided_elsewhere = true},
          self.min_p);
    visit(Parameter{.name = "repetition_penalty",
                    .help = "Divisor for logits of tokens in prompt or output; default: the "
                            "checkpoint's, or 1 (off)",
                    .least = 0.0,
                    .most = 100.0,
                    .above_least = true,
                    .usual_least = 0.5,
                    .usual_most = 2.0,
                    .decided_elsewhere = true},
          self.repetition_penalty);
    visit(Parameter{.name = "presence_penalty",
                    .help = "Amount subtracted from logits of tokens in the output; 0: off",
                    .least = -2.0,
                    .most = 2.0,
                    .usual_least = -2.0,
                    .usual_most = 2.0},
          self.presence_penalty);
    visit(Parameter{.name = "frequency_penalty",
                    .help = "The same, times the token's count there",
                    .least = -2.0,
                    .most = 2.0,
                    .usual_least = -2.0,
                    .usual_most = 2.0},
          self.frequency_penalty);
    visit(Parameter{.name = "logit_bias",
                    .help = "ID:BIAS, BIAS is added to the token's logit; may be repeated"},
          self.logit_bias);
    visit(Parameter{.name = "seed",
                    .help = "Seed of the noise; 64 random bits, reported, if not given",
                    .decided_elsewhere = true},
          self.seed);
}

}  // namespace espalier::accept
