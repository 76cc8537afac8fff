// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.hpp"

namespace espalier {

// True if portable kernels wait for the one in front of them themselves on the current GPU; an
// error where this build has none for it.
Expected<bool> portable_kernels_wait();

}  // namespace espalier
