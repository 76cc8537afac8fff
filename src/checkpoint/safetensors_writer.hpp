// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files, single or sharded with their index: the head here, the tensors by the
// caller, in the order of the shard's list.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/tensor_list.hpp"

namespace espalier::checkpoint {

// A new file; errors name it.
class OutputFile {
  public:
    explicit OutputFile(std::filesystem::path path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    Expected<void> write(const void* data, std::size_t bytes);
    // Some file systems report a full disk only here.
    Expected<void> close();

  private:
    std::filesystem::path path_;
    int descriptor_;
};

Expected<void> write_text(const std::filesystem::path& path, std::string_view text);

struct Shard {
    std::string file;
    std::vector<TensorSpec> tensors;
};

// "model.safetensors", or "model-00002-of-00005.safetensors".
std::string shard_name(std::size_t index, std::size_t count);
// The u64 length and the JSON, padded with spaces so that the data begins at a multiple of
// `alignment`.
std::string safetensors_head(const Shard& shard, std::size_t alignment = 8);
std::string index_json(std::span<const Shard> shards, std::uint64_t total_bytes);

}  // namespace espalier::checkpoint
