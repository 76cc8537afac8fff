// SPDX-License-Identifier: Apache-2.0
// A model by its name, from a Hugging Face-compatible hub into the cache that other tools share.
// Only the files that a model is made of; each is whole and checked before it has its name, and the
// revision is named last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "checkpoint/hub_cache.hpp"

namespace espalier::hub {

// ORG/NAME[@REVISION], or with a GGUF file of it: ORG/NAME/FILE.gguf[@REVISION].
struct WantedModel {
    checkpoint::RepositoryName repository;
    std::string gguf;  // empty: the safetensors
};
std::optional<WantedModel> wanted_model(std::string_view model);

struct PullOptions {
    int threads = 8;
    int retries = 5;
    std::int64_t piece_bytes = 32 << 20;
    std::function<void(std::uint64_t done, std::uint64_t total)> progress;
    std::function<void(const std::string& line)> say;
};

struct Pulled {
    std::filesystem::path path;  // of the snapshot, or of the GGUF file in it
    std::string commit;
    std::int64_t files = 0, fetched_bytes = 0;
};
Expected<Pulled> pull(const WantedModel& wanted, const PullOptions& options);

// What a command opens for the name that it was given: a directory, a file, or what the cache has,
// as it is; what the cache has not is fetched, unless HF_HUB_OFFLINE forbids it.
Expected<std::string> on_disk(const std::string& model, const PullOptions& options);

}  // namespace espalier::hub
