// SPDX-License-Identifier: Apache-2.0
// Where the sources lie that tests read data from. A function of one file, so that no other object
// depends on the checkout's place and a compiler cache serves every checkout.
#pragma once

namespace espalier::test {

const char* source_directory();

}  // namespace espalier::test
