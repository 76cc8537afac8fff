// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace espalier::test {

// Condition that must hold of any input; a fuzzer takes the abort for a finding.
inline void require(bool condition) {
    if (!condition) std::abort();
}

}  // namespace espalier::test
