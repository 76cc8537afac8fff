// SPDX-License-Identifier: Apache-2.0
// A model's weights in the CPU's layout as a file beside its checkpoint
// (checkpoint/packed_file.hpp): a second start maps it and packs nothing. Embedding and norms stay
// in the checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/cpu_device.hpp"
#include "checkpoint/packed_file.hpp"
#include "model/weight_shelf.hpp"
#include "model/weights.hpp"

namespace espalier::model {

// In the model's directory.
std::filesystem::path packed_weights_path(const checkpoint::Checkpoint& checkpoint);

// A file of a model's packed weights, and what it has to say of itself.
struct PackedPlace {
    std::filesystem::path file;
    checkpoint::PackedIdentity identity;
    double spare = 0.0;  // share of the disk that a new file leaves free
};
// packed_weights_path.
PackedPlace place_beside(const checkpoint::Checkpoint& checkpoint);

// Weights that lie in a packed file. It outlives them (LoadOptions::shelf).
class PackedWeights : public WeightShelf {
  public:
    // Null: there is no such file. One that is damaged or of other weights is an error.
    static Expected<std::shared_ptr<PackedWeights>> open(const checkpoint::Checkpoint& checkpoint);
    static Expected<std::shared_ptr<PackedWeights>> open(const PackedPlace& place);
    // Refuses a file whose numbers are not those that were written. All are read, but for routed
    // experts that stay on disk.
    Expected<void> check(ThreadPool& pool, bool mmap_experts) const;

    Expected<std::optional<Weight>> take(const std::string& name,
                                         const linalg::WeightView& shape) override;
    // A copy in the device's memory; where a part does not begin and end with panels, nothing.
    Expected<std::optional<Weight>> take_part(Device& device, const std::string& name,
                                              const linalg::WeightView& whole,
                                              const linalg::StackPart& part) override;
    Expected<Weight> keep(const std::string& name, Weight packed) override;

    std::uint64_t file_bytes() const { return file_.file().size(); }

  private:
    explicit PackedWeights(checkpoint::PackedFile file) : file_(std::move(file)) {}
    checkpoint::PackedFile file_;
};

// Packs one weight after the other and writes it; all of them, MTP layers too. Replaces a file that
// is there. progress: in bytes of the checkpoint.
Expected<void> write_packed_weights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                    CpuDevice& device, const Progress& progress = {});
Expected<void> write_packed_weights(const PackedPlace& place,
                                    std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                    CpuDevice& device, const Progress& progress = {});

}  // namespace espalier::model
