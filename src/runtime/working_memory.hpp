// SPDX-License-Identifier: Apache-2.0
// What an engine takes of a GPU beside weights and pages, by the rules that its parts are made by.
// Pages get the rest, and what does not fit is refused before anything is read.
#pragma once

#include <cstdint>
#include <functional>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "runtime/drafters.hpp"
#include "runtime/model_files.hpp"

namespace espalier::runtime {

// Borrows nothing.
Expected<std::function<std::int64_t(const EngineSizes&)>> gpu_working_bytes(
    const ModelFiles& files, const DrafterChoice& drafters);

}  // namespace espalier::runtime
