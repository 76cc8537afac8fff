// SPDX-License-Identifier: Apache-2.0
// Writes a model's directory: safetensors files of pieces that are made one after another, then its
// texts. A run that was cut short is taken up by the same command.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "model/weights.hpp"

namespace espalier::model {

// Tensors that are made together and lie one after another.
struct WrittenPiece {
    std::vector<checkpoint::TensorSpec> tensors;
    std::uint64_t source_bytes = 0;
    std::function<Expected<void>(checkpoint::OutputFile&)> write;
};

struct WrittenCheckpoint {
    std::string command;  // whose beginnings are taken up
    std::string what;     // is written, in words: another beginning is refused
    std::vector<WrittenPiece> pieces = {};
    std::vector<std::pair<std::string, std::string>> texts = {};  // files' names and contents
    std::uint64_t shard_limit_bytes = std::uint64_t{4} << 30;
    Progress progress = {};  // in bytes of the source
};

// Into a directory that is made if need be, and is new, empty or begun by the same command. Files
// that are whole stay. Texts come last, in their order.
Expected<void> write_checkpoint(const std::filesystem::path& directory,
                                const WrittenCheckpoint& checkpoint);

// A tensor's place in a file.
checkpoint::TensorSpec tensor_spec(std::string name, checkpoint::StoredType type,
                                   std::vector<std::int64_t> shape);

}  // namespace espalier::model
