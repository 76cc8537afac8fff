// SPDX-License-Identifier: Apache-2.0
// Writes a GGUF model as a directory of safetensors: block formats without minima as integers in
// the layout of compressed-tensors, whose numbers and sums are the same; other matrices as bf16,
// rounded once; norms, routers and embeddings as they are, or in f32.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.hpp"
#include "checkpoint/checkpoint.hpp"
#include "model/weights.hpp"

namespace espalier::model {

struct ConvertOptions {
    std::vector<std::pair<std::string, std::string>> texts = {};  // tokenizer files, by name
    std::uint64_t shard_limit_bytes = std::uint64_t{4} << 30;
    Progress progress = {};  // in bytes of the source
};

// Into `directory`, as model::quantize does.
Expected<void> convert(const checkpoint::Checkpoint& source, const std::filesystem::path& directory,
                       ThreadPool& pool, const ConvertOptions& options);

}  // namespace espalier::model
