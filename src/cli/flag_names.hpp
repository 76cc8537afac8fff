// SPDX-License-Identifier: Apache-2.0
// What holds for the flags of all commands: integers are plain decimal ones, and an error about a
// field of a request or a setting names the flag that set it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/error.hpp"

namespace espalier::cli {

// Refuses what is no decimal integer within the flag's type (010, 1e3, 0x10, -1 where nothing is
// below 0, 2^64): CLI11 alone reads these as octal, wraps or cuts them.
void require_decimal_integers(CLI::App& app);

// Validator of a flag whose empty text would be taken for a flag that was not given.
CLI::Validator not_empty();

// "temperature: 3, not within 0…2" becomes "--temperature: 3, …" if the command has that flag.
Error named_by_flag(const CLI::App& command, Error error);

}  // namespace espalier::cli
