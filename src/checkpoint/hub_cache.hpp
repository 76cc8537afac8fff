// SPDX-License-Identifier: Apache-2.0
// The hub cache as huggingface_hub lays it out: models--ORG--NAME/{refs,blobs,snapshots}, where
// refs/REVISION names a folder of snapshots/. What lies there other tools share.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::checkpoint {

struct RepositoryName {
    std::string organisation, name, revision;  // revision empty: main
    std::string folder() const { return fmt::format("models--{}--{}", organisation, name); }
};

// ORG/NAME or ORG/NAME@REVISION, whose parts can be joined to a directory.
std::optional<RepositoryName> repository_name(std::string_view model);

// The directory that HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME says.
Expected<std::filesystem::path> hub_cache();

}  // namespace espalier::checkpoint
