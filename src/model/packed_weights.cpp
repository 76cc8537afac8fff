// SPDX-License-Identifier: Apache-2.0
#include "model/packed_weights.hpp"

#include <system_error>
#include <utility>
#include <vector>

#include "base/cpu_features.hpp"
#include "linalg/packed.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

using checkpoint::PackedFile;
using checkpoint::PackedFileWriter;
using linalg::WeightView;

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

// The file will fit the disk, as far as the system tells.
Expected<void> check_room(const PackedPlace& place,
                          const std::vector<PackedFileWriter::Section>& sections) {
    std::uint64_t bytes = 0;
    for (const PackedFileWriter::Section& section : sections) bytes += section.bytes;
    std::error_code error;
    const fs::space_info disk = fs::space(fs::absolute(place.file).parent_path(), error);
    const double spare = place.spare * static_cast<double>(disk.capacity);
    if (error || static_cast<double>(bytes) + spare <= static_cast<double>(disk.available))
        return {};
    return fail(ErrorKind::exhausted,
                "{}: {:.1f} GB of weights, and {:.1f} GB of the disk are free", place.file.string(),
                static_cast<double>(bytes) / 1e9, static_cast<double>(disk.available) / 1e9);
}

}  // namespace

fs::path packed_weights_path(const checkpoint::Checkpoint& checkpoint) {
    return checkpoint::packed_path(checkpoint.directory(), name_of(linalg::WeightLayout::panels));
}

PackedPlace place_beside(const checkpoint::Checkpoint& checkpoint) {
    return {packed_weights_path(checkpoint),
            {std::string(name_of(linalg::WeightLayout::panels)), linalg::kPanelsVersion,
             checkpoint::weights_fingerprint(checkpoint)}};
}

Expected<std::shared_ptr<PackedWeights>> PackedWeights::open(
    const checkpoint::Checkpoint& checkpoint) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(packed_weights_path(checkpoint), error);
    if (!fs::exists(status)) return nullptr;
    auto packed = open(place_beside(checkpoint));
    if (packed) return packed;
    return fail(packed.error().kind, "{}; write it again with: espalier pack",
                packed.error().message);
}

Expected<std::shared_ptr<PackedWeights>> PackedWeights::open(const PackedPlace& place) {
    ESPALIER_ASSIGN_OR_RETURN(PackedFile file, PackedFile::open(place.file, place.identity));
    return std::shared_ptr<PackedWeights>(new PackedWeights(std::move(file)));
}

Expected<void> PackedWeights::check(ThreadPool& pool, bool mmap_experts) const {
    return file_.check_sums(pool, [&](std::string_view section) {
        return mmap_experts && section.find(kExperts) != std::string_view::npos;
    });
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
    const PackedPlace place = place_beside(*checkpoint);
    return write_packed_weights(place, std::move(checkpoint), device, progress);
}

Expected<void> write_packed_weights(const PackedPlace& place,
                                    std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                    CpuDevice& device, const Progress& progress) {
    // The layout is the same for every variant of the kernels.
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    const auto lister = std::make_shared<Lister>();
    ESPALIER_RETURN_IF_ERROR(
        Weights::load(checkpoint, device, *backend, {.mtp = true, .shelf = lister}));
    ESPALIER_RETURN_IF_ERROR(check_room(place, lister->sections));
    ESPALIER_ASSIGN_OR_RETURN(
        PackedFileWriter file,
        PackedFileWriter::create(place.file, place.identity, std::move(lister->sections)));
    const auto writer = std::make_shared<Writer>(std::move(file));
    ESPALIER_RETURN_IF_ERROR(Weights::load(std::move(checkpoint), device, *backend,
                                           {.mtp = true, .shelf = writer, .progress = progress}));
    return writer->finish();
}

}  // namespace espalier::model
