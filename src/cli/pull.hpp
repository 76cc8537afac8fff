// SPDX-License-Identifier: Apache-2.0
// Models by their name, for the commands that open one.
#pragma once

#include <string>

#include "base/error.hpp"

namespace espalier::cli {

// What is to be opened for the model (and its draft): as it is, or what was fetched, with a
// progress bar, because the cache did not have it. A build without the server fetches nothing.
Expected<std::string> fetched_model(const std::string& model);

}  // namespace espalier::cli
