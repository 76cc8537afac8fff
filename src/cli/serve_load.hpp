// SPDX-License-Identifier: Apache-2.0
// The load of bench serve: completions sent to an OpenAI-compatible server at their times, and what
// its clients see of each. A thread for every request that is under way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/http_client.hpp"

namespace espalier::cli {

struct ServeLoad {
    Url url = {};
    std::string api_key = {};
    std::string model = {};  // empty: the server's first
    std::int64_t requests = 100;
    double rate = 0;               // requests per second; 0: all at once
    double burstiness = 1;         // 1: Poisson; less comes in bursts, more comes evenly (gamma)
    std::int64_t concurrency = 0;  // at most under way; 0: no limit but kMaxConcurrency
    std::int64_t input_tokens = 256;
    std::int64_t output_tokens = 128;
    std::int64_t vocabulary = 1000;  // random prompts: ids from 100 up to this
    std::string text = {};           // prompts are cut from this text; empty: random ids
    double temperature = 0;
    bool ignore_eos = false;
    std::uint64_t seed = 0;
};
inline constexpr std::int64_t kMaxConcurrency = 4096;

// One request as its client saw it. Times in seconds.
struct ServeOutcome {
    std::string error = {};  // empty: it came to its end
    double began = 0;        // from the run's start
    double first_token = 0;
    double whole = 0;
    std::vector<double> gaps = {};  // from one piece of text to the next
    std::int64_t input_tokens = 0;
    std::int64_t output_tokens = 0;  // as the server counts them
};

struct ServeRun {
    double seconds = 0;
    std::string model = {};
    std::vector<ServeOutcome> outcomes = {};  // in the order of requests
    std::int64_t most_under_way = 0;
};

// When each request is sent, in seconds from the start: a function of rate, burstiness and seed.
std::vector<double> arrival_times(const ServeLoad& load);
// The bodies of the requests, a function of load and model.
std::vector<std::string> request_bodies(const ServeLoad& load, const std::string& model);

// progress: requests done so far.
Expected<ServeRun> run_serve_load(const ServeLoad& load,
                                  const std::function<void(std::int64_t)>& progress);

// A counter of the server's /metrics by its name without prefix and labels, summed over labels.
std::optional<double> metric_of(const std::string& metrics, const std::string& name);

}  // namespace espalier::cli
