// SPDX-License-Identifier: Apache-2.0
// The espalier binary: parses the command line and hands over to a sub-command.
#pragma once

namespace espalier::cli {

// The result of main().
int run_program(int argc, char** argv);

}  // namespace espalier::cli
