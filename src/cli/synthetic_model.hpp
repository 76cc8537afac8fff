// SPDX-License-Identifier: Apache-2.0
// Models of random weights by the names of their presets, for make-model and bench model.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/device.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::cli {

// --dtype: how the projections are stored.
void add_dtype_flag(CLI::App& command, std::string& dtype);
// Accepts the names of presets.
CLI::Validator preset_name();

// dtype: empty for the preset's own.
Expected<checkpoint::SyntheticModel> named_model(const std::string& preset,
                                                 const std::string& dtype);

// Writes the model into a directory for temporary files, opens it, and removes the files: what is
// mapped stays readable as long as the checkpoint lives, and nothing is left behind. For a GPU the
// weights are made there, and on disk are only the small files.
Expected<checkpoint::Checkpoint> open_synthetic(const checkpoint::SyntheticModel& model,
                                                DeviceKind device);

}  // namespace espalier::cli
