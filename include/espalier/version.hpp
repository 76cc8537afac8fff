// SPDX-License-Identifier: Apache-2.0
// The version, once; CMakeLists.txt reads it from here.
#pragma once

#define ESPALIER_VERSION "0.3.0"
