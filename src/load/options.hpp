// SPDX-License-Identifier: Apache-2.0
// What a load is: how many requests, when, and what they ask for. Plain data.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace espalier::load {

enum class Api { completions, chat };

struct LoadOptions {
    Api api = Api::completions;
    std::string model = {};
    std::int64_t requests = 100;
    double rate = std::numeric_limits<double>::infinity();  // requests per second; inf: all at once
    double burstiness = 1;         // shape of the gamma distribution of intervals; 1: Poisson
    std::int64_t concurrency = 0;  // under way at most; 0: any number up to kMaxConcurrency
    std::int64_t input_tokens = 256;
    std::int64_t output_tokens = 128;
    std::int64_t vocabulary = 1000;         // random prompts have ids from kFirstId below this
    std::string text = {};                  // prompts are cut from it
    std::vector<std::string> prompts = {};  // or are these, in turn; both empty: random ids
    double temperature = 0;
    bool ignore_eos = false;
    std::uint64_t seed = 0;
};

inline constexpr std::int64_t kMaxConcurrency = 16384;
// Low ids are special tokens and bytes in most vocabularies.
inline constexpr std::int64_t kFirstId = 100;

}  // namespace espalier::load
