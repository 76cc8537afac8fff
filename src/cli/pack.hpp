// SPDX-License-Identifier: Apache-2.0
// What pack does, and quantize --packed at its end.
#pragma once

#include <string>

#include "base/error.hpp"

namespace espalier::cli {

// Beside the model, with a progress bar; says what was written.
Expected<void> write_packed(const std::string& model, int threads);

}  // namespace espalier::cli
