// SPDX-License-Identifier: Apache-2.0
// A directory of packed weights (packed_weights.hpp), a file for each model: the first start packs
// and writes it, later ones map it. A file is for one checkpoint as it lies on disk (its
// fingerprint, sizes and times) and for one version of the layout; one that is damaged or of
// another is made again. Processes may share the directory: one of them packs, the others wait.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "model/packed_weights.hpp"

namespace espalier::model {

class PackedCache {
  public:
    static constexpr std::size_t kMostFiles = 4;  // of a directory: those longest unused go
    static constexpr double kSpare = 0.05;        // share of the disk that a new file leaves free

    explicit PackedCache(std::filesystem::path directory) : directory_(std::move(directory)) {}

    // The file of a checkpoint, there or not.
    std::filesystem::path file_of(const checkpoint::Checkpoint& checkpoint) const;

    struct Use {
        bool mmap_experts = false;  // experts are not read, and so not checked
        Progress progress = {};     // of packing, in bytes of the checkpoint
        // Told in a sentence what is done that takes time, and why.
        std::function<void(const std::string&)> say = {};
    };
    // The checkpoint's weights, packed if they are not there. An error: they could not be.
    Expected<std::shared_ptr<PackedWeights>> take(
        std::shared_ptr<const checkpoint::Checkpoint> checkpoint, CpuDevice& device,
        const Use& use) const;

  private:
    PackedPlace place_of(const checkpoint::Checkpoint& checkpoint) const;
    Expected<std::shared_ptr<PackedWeights>> open(const PackedPlace& place, CpuDevice& device,
                                                  const Use& use) const;
    Expected<void> pack(const PackedPlace& place,
                        std::shared_ptr<const checkpoint::Checkpoint> checkpoint, CpuDevice& device,
                        const Use& use) const;
    void make_room(const std::filesystem::path& file) const;

    std::filesystem::path directory_;
};

}  // namespace espalier::model
