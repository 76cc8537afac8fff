// SPDX-License-Identifier: Apache-2.0
#include "support/paths.hpp"

namespace espalier::test {

const char* source_directory() { return ESPALIER_SOURCE_DIR; }

}  // namespace espalier::test
