// SPDX-License-Identifier: Apache-2.0
// Reads what tools/make_goldens.py wrote: "EGOLDEN1", a u64 header length, a JSON header, then
// arrays [positions, vocabulary] f32, all little endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/numeric.hpp"

namespace espalier::model {

struct Golden {
    std::string name;
    std::uint64_t seed = 0;
    DType dtype = DType::f32;  // e4m3: FP8 projections, all else bf16
    std::string config_json;   // as a published checkpoint has it
    std::int64_t vocabulary = 0;
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t> positions;     // of the prompt, ascending, the last one included
    std::vector<std::int32_t> continuation;  // greedy, f32 and f16 models only
    // Keys that each layer with an indexer chose, at stored positions that choose.
    struct Chosen {
        std::int64_t layer = 0;
        std::int32_t position = 0;
        std::vector<std::int32_t> keys;  // ascending
    };
    std::vector<Chosen> chosen;
    std::vector<float> reference;   // [positions, vocabulary]: f32 run on the weights as stored
    std::vector<float> torch_bf16;  // the same positions in torch's bf16; bf16 and FP8 models only
};

Expected<Golden> read_golden(const std::filesystem::path& path);

}  // namespace espalier::model
