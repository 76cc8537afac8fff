// SPDX-License-Identifier: Apache-2.0
// Which files of a repository a model is made of. Pure. Names come from a server: none is taken
// that could leave the directory it is joined to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace espalier::hub {

// Parts joined by slashes, each a plain name.
bool is_plain_path(std::string_view path);

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// Texts that are there of those that a model may have, the index of its weights too.
std::vector<std::string> needed_texts(const std::vector<std::string>& there);
// Weights: those that the index names, or the single file (index empty: there is none).
Expected<std::vector<std::string>> needed_weights(const std::vector<std::string>& there,
                                                  std::string_view index);
// A GGUF file, all its parts where it has some.
Expected<std::vector<std::string>> needed_gguf(const std::vector<std::string>& there,
                                               const std::string& file);

}  // namespace espalier::hub
