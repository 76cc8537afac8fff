// SPDX-License-Identifier: Apache-2.0
#include "model/shard_bytes.hpp"

#include "base/cpu_device.hpp"
#include "base/cpu_features.hpp"
#include "linalg/packed.hpp"
#include "model/weight_shelf.hpp"
#include "model/weights.hpp"

namespace espalier::model {
namespace {

// Gives every weight without its numbers, and adds up what they would take.
class Adder : public WeightShelf {
  public:
    Expected<std::optional<Weight>> take(const std::string&,
                                         const linalg::WeightView& shape) override {
        ESPALIER_ASSIGN_OR_RETURN(const linalg::WeightView view, linalg::panels_shape(shape));
        bytes += static_cast<std::uint64_t>(view.count * (view.matrix_bytes + view.scale_bytes));
        stored +=
            static_cast<double>(view.count * view.n * view.k) * view.format.bits_per_weight() / 8;
        return Weight(Buffer(), Buffer(), view);
    }
    Expected<Weight> keep(const std::string&, Weight packed) override { return packed; }

    std::uint64_t bytes = 0;
    double stored = 0;
};

}  // namespace

Expected<ShardBytes> shard_bytes(const std::shared_ptr<const checkpoint::Checkpoint>& checkpoint,
                                 const Shard& shard) {
    CpuDevice device(1);
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    const auto adder = std::make_shared<Adder>();
    ESPALIER_RETURN_IF_ERROR(
        Weights::load(checkpoint, device, *backend, {.mtp = true, .shelf = adder, .shard = shard}));
    // Loading has found it.
    return ShardBytes{.packed = adder->bytes,
                      .stored = static_cast<std::uint64_t>(adder->stored),
                      .embedding = checkpoint->stored("model.embed_tokens.weight")->bytes.size()};
}

}  // namespace espalier::model
