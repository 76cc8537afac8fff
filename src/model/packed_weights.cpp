// SPDX-License-Identifier: Apache-2.0
#include "model/packed_weights.hpp"

#include <system_error>
#include <utility>
#include <vector>

#include "base/cpu_features.hpp"
#include "linalg/packed.hpp"

namespace espalier::model {
namespace {

using checkpoint::PackedFile;
using checkpoint::PackedFileWriter;
using linalg::WeightView;

checkpoint::PackedIdentity identity_of(const checkpoint::Checkpoint& checkpoint) {
    return {std::string(name_of(linalg::WeightLayout::panels)), linalg::kPanelsVersion,
            checkpoint::weights_fingerprint(checkpoint)};
}

std::string scales_name(const std::string& name) { return name + ":scales"; }

std::uint64_t data_bytes(const WeightView& view) {
    return static_cast<std::uint64_t>(view.count * view.matrix_bytes);
}
std::uint64_t scale_bytes(const WeightView& view) {
    return static_cast<std::uint64_t>(view.count * view.scale_bytes);
}

// Memory of a mapped file, which the buffer does not free and no kernel writes.
Buffer borrowed(std::span<const std::byte> bytes) {
    return {const_cast<std::byte*>(bytes.data()), bytes.size(), nullptr};
}

// Gives every weight without its numbers, and remembers what it would be in a file.
class Lister : public WeightShelf {
  public:
    Expected<std::optional<Weight>> take(const std::string& name,
                                         const WeightView& shape) override {
        ESPALIER_ASSIGN_OR_RETURN(const WeightView view, linalg::panels_shape(shape));
        sections.push_back({name, data_bytes(view)});
        if (view.format.scaled()) sections.push_back({scales_name(name), scale_bytes(view)});
        return Weight(Buffer(), Buffer(), view);
    }
    Expected<Weight> keep(const std::string&, Weight packed) override { return packed; }

    std::vector<PackedFileWriter::Section> sections;
};

// Writes every weight and lets its memory go.
class Writer : public WeightShelf {
  public:
    explicit Writer(PackedFileWriter file) : file_(std::move(file)) {}

    Expected<std::optional<Weight>> take(const std::string&, const WeightView&) override {
        return std::nullopt;
    }
    Expected<Weight> keep(const std::string& name, Weight packed) override {
        const WeightView view = packed.view();
        ESPALIER_RETURN_IF_ERROR(file_.write(name, {view.data, data_bytes(view)}));
        if (view.format.scaled())
            ESPALIER_RETURN_IF_ERROR(
                file_.write(scales_name(name), {view.scales, scale_bytes(view)}));
        return Weight(Buffer(), Buffer(), view);
    }
    Expected<void> finish() { return file_.finish(); }

  private:
    PackedFileWriter file_;
};

}  // namespace

std::filesystem::path packed_weights_path(const checkpoint::Checkpoint& checkpoint) {
    return checkpoint::packed_path(checkpoint.directory(), name_of(linalg::WeightLayout::panels));
}

Expected<std::shared_ptr<PackedWeights>> PackedWeights::open(
    const checkpoint::Checkpoint& checkpoint) {
    const std::filesystem::path path = packed_weights_path(checkpoint);
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return nullptr;
    ESPALIER_ASSIGN_OR_RETURN(PackedFile file, PackedFile::open(path, identity_of(checkpoint)));
    return std::shared_ptr<PackedWeights>(new PackedWeights(std::move(file)));
}

Expected<std::optional<Weight>> PackedWeights::take(const std::string& name,
                                                    const WeightView& shape) {
    ESPALIER_ASSIGN_OR_RETURN(const WeightView view, linalg::panels_shape(shape));
    ESPALIER_ASSIGN_OR_RETURN(const auto data, file_.section(name, data_bytes(view)));
    if (!view.format.scaled()) return Weight(borrowed(data), Buffer(), view);
    ESPALIER_ASSIGN_OR_RETURN(const auto scales,
                              file_.section(scales_name(name), scale_bytes(view)));
    return Weight(borrowed(data), borrowed(scales), view);
}

Expected<std::optional<Weight>> PackedWeights::take_part(Device& device, const std::string& name,
                                                         const WeightView& whole,
                                                         const linalg::StackPart& part) {
    if (!linalg::in_panels(whole, part)) return std::nullopt;
    ESPALIER_ASSIGN_OR_RETURN(const std::optional<Weight> found, take(name, whole));
    ESPALIER_ASSIGN_OR_RETURN(Weight copied, linalg::copy_panels(device, found->view(), part));
    return copied;
}

Expected<Weight> PackedWeights::keep(const std::string& name, Weight) {
    CHECK(false, "'{}' was packed beside a packed file", name);
}

Expected<void> write_packed_weights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                    CpuDevice& device, const Progress& progress) {
    // The layout is the same for every variant of the kernels.
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    const auto lister = std::make_shared<Lister>();
    ESPALIER_RETURN_IF_ERROR(
        Weights::load(checkpoint, device, *backend, {.mtp = true, .shelf = lister}));
    ESPALIER_ASSIGN_OR_RETURN(
        PackedFileWriter file,
        PackedFileWriter::create(packed_weights_path(*checkpoint), identity_of(*checkpoint),
                                 std::move(lister->sections)));
    const auto writer = std::make_shared<Writer>(std::move(file));
    ESPALIER_RETURN_IF_ERROR(Weights::load(std::move(checkpoint), device, *backend,
                                           {.mtp = true, .shelf = writer, .progress = progress}));
    return writer->finish();
}

}  // namespace espalier::model
