// SPDX-License-Identifier: Apache-2.0
// The GPU of the tests: by default as it is. With ESPALIER_TEST_GPU=portable in the environment it
// runs the portable family's kernels, with ESPALIER_TEST_GPU=small these and no more of itself than
// a card with 82 multiprocessors and 99 KB of shared memory has.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "base/device.hpp"

namespace espalier {

inline DeviceLimits test_gpu_limits() {
    const char* named = std::getenv("ESPALIER_TEST_GPU");
    const std::string_view name = named == nullptr ? "" : named;
    if (name.empty()) return {};
    if (name == "portable") return {.portable_kernels = true};
    if (name == "small")
        return {.multiprocessors = 82, .block_shared_bytes = 99 * 1024, .portable_kernels = true};
    throw std::runtime_error("ESPALIER_TEST_GPU is portable or small");
}

}  // namespace espalier
