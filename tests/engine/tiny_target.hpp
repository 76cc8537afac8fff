// SPDX-License-Identifier: Apache-2.0
// Small random models for the engine's tests, of both architectures, with two poisoned
// tokens: whoever commits one of them must fail, and nobody else.
#pragma once

#include <cstdint>
#include <memory>

#include "grammar/compiler.hpp"
#include "lossless/plain_run.hpp"
#include "lossless/workload.hpp"
#include "model/tiny_model.hpp"
#include "ops/ops.hpp"
#include "text/tokenizer.hpp"

namespace espalier::engine {

inline constexpr std::int32_t kTinyVocabulary = 512;
inline constexpr std::int32_t kPoisonToken = 511;       // all it computes is NaN
inline constexpr std::int32_t kQuietPoisonToken = 510;  // only its cache entry is not finite
inline constexpr std::int64_t kTinyMaxTokens = lossless::kWorkloadTokens;
inline constexpr std::int64_t kTinyMaxGather = lossless::kWorkloadGather;

enum class Family { v2, v3, v3_fp8_cache, v3_int4 };

struct TinyTarget {
    std::unique_ptr<model::RunningModel> model;
    std::unique_ptr<text::Tokenizer> tokenizer;
    std::unique_ptr<grammar::Compiler> compiler;

    lossless::Subject target() const {
        lossless::Subject subject{.model = **model, .tokenizer = *tokenizer, .poisoned = 2};
        subject.compiler = compiler.get();
        return subject;
    }
};

// Made at the first call, kept until the program ends; one thread at a time may use it.
TinyTarget& tiny_target(Family family);
// v3 alone, on a GPU; throws where there is none.
TinyTarget& gpu_target(Family family);

// The same on a device whose memory the host cannot touch (lossless/isolated_device.hpp): with the
// operations in plain loops and weights in plain rows, or with the CPU's own.
enum class Operations { reference, cpu };
TinyTarget& isolated_target(Operations operations);

}  // namespace espalier::engine
