// SPDX-License-Identifier: Apache-2.0
// Flags that can also be set by the environment (ESPALIER_MAX_MODEL_LEN for --max-model-len) and by
// a file: the command line wins, then the environment, then the file. The command's own options are
// the one table for all three, for the page of flags and for what --explain prints.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "base/error.hpp"

namespace espalier::cli {

// "max-model-len": how a file names the option; empty for --help.
std::string key_of(const CLI::Option& option);
std::string environment_name(const std::string& key);

// Source of each option's value: "command line", "environment", "file" or "default".
using Sources = std::map<std::string, std::string>;  // by key

// After parsing. config: the file's name; empty: none. A key that the command does not have is an
// error that names the nearest one it has; variables of the environment that it does not have are
// returned in `ignored` (Kubernetes sets some of that form).
Expected<Sources> apply_settings(CLI::App& command, const std::string& config,
                                 std::vector<std::string>& ignored);

// docs/flags.md.
std::string flags_page(const CLI::App& command);
// A line per option: its value and where that comes from. Keys stay secret.
std::string explain_settings(const CLI::App& command, const Sources& sources);

}  // namespace espalier::cli
