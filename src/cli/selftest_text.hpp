// SPDX-License-Identifier: Apache-2.0
// English and C++ of this project (data/prompts/selftest.txt), about 19,000 bytes.
#pragma once

#include <string_view>

namespace espalier::cli {

std::string_view selftest_text();

}  // namespace espalier::cli
