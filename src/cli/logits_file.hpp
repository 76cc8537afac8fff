// SPDX-License-Identifier: Apache-2.0
// A prompt's logits as a file that others read: what the model computes before any sampling, for
// those who hold it to another implementation.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.hpp"
#include "model/deepseek.hpp"

namespace espalier::cli {

// NumPy's .npy, version 1.0: float32 [positions, vocabulary], C order; row i speaks of token i + 1.
// Runs the model, which is not used otherwise meanwhile.
Expected<void> write_logits(const std::string& path, model::DeepseekModel& model,
                            std::span<const std::int32_t> prompt);

// The header of such a file: a multiple of 64 bytes.
std::string npy_header(std::int64_t rows, std::int64_t columns);

}  // namespace espalier::cli
