// SPDX-License-Identifier: Apache-2.0
// Models of random weights by the names of their presets, for make-model and bench.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/device.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/synthetic.hpp"
#include "runtime/model_files.hpp"

namespace espalier::cli {

// --dtype: how the projections are stored.
void add_dtype_flag(CLI::App& command, std::string& dtype);
// Accepts the names of presets.
CLI::Validator preset_name();

// dtype: empty for the preset's own.
Expected<checkpoint::SyntheticModel> named_model(const std::string& preset,
                                                 const std::string& dtype);

// Model that bench times: the user's, or a preset that is made for this run alone.
struct BenchedModel {
    std::string name;       // of a directory or ORG/NAME
    std::string synthetic;  // a preset instead
    std::string dtype;

    void add_to(CLI::App& command);
    // draft: an EAGLE3 draft for it; empty: none.
    Expected<runtime::ModelFiles> open(DeviceKind device, const std::string& draft = "") const;
};

}  // namespace espalier::cli
