// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_storage.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/for_what.hpp"

namespace espalier::cache {

Plane slot_plane(std::string_view name, Plane::Of model, std::int64_t layer, mla::KvFormat format,
                 const KeyDims& columns) {
    return {.name = name,
            .model = model,
            .layer = layer,
            .format = format,
            .columns = columns,
            .page_stride = mla::page_stride_bytes(format, kPageTokens, columns)};
}

Plane tail_plane(std::int64_t layer, std::int64_t floats) {
    const KeyDims columns{floats, 0};
    return {.name = kTailStates,
            .model = Plane::Of::draft,
            .layer = layer,
            .format = mla::KvFormat::f32,
            .columns = columns,
            .of_slots = false,
            .page_stride = mla::page_stride_bytes(mla::KvFormat::f32, 1, columns)};
}

std::int64_t KvLayout::bytes_per_page() const {
    std::int64_t bytes = 0;
    for (const Plane& plane : planes) bytes += plane.page_stride;
    return bytes;
}

std::int64_t KvLayout::layers(Plane::Of model) const {
    return std::ranges::count_if(
        planes, [&](const Plane& plane) { return plane.name == kLatents && plane.model == model; });
}

std::size_t KvLayout::index_of(std::string_view name, Plane::Of model, std::int64_t layer) const {
    const auto found = std::ranges::find_if(planes, [&](const Plane& plane) {
        return plane.layer == layer && plane.model == model && plane.name == name;
    });
    CHECK(found != planes.end(), "no {} of {} layer {} among {} planes", name,
          model == Plane::Of::target ? "target" : "draft", layer, planes.size());
    return static_cast<std::size_t>(found - planes.begin());
}

bool KvLayout::has(std::string_view name, Plane::Of model, std::int64_t layer) const {
    return std::ranges::any_of(planes, [&](const Plane& plane) {
        return plane.layer == layer && plane.model == model && plane.name == name;
    });
}

KvLayout KvLayout::layer(Plane::Of model, std::int64_t layer) const {
    KvLayout alone;
    std::ranges::copy_if(planes, std::back_inserter(alone.planes), [&](const Plane& plane) {
        return plane.model == model && plane.layer == layer;
    });
    return alone;
}

std::string KvLayout::formats() const {
    std::vector<std::string> found;
    for (const Plane& plane : planes) {
        if (plane.model != Plane::Of::target) continue;
        const std::string_view format = mla::name_of(plane.format);
        std::string entry =
            plane.name == kLatents ? std::string(format) : fmt::format("{} {}", plane.name, format);
        if (std::ranges::find(found, entry) == found.end()) found.push_back(std::move(entry));
    }
    return fmt::format("{}", fmt::join(found, ", "));
}

KvLayout make_layout(std::int64_t target_layers, mla::KvFormat format, const KeyDims& keys) {
    CHECK(target_layers > 0, "{} layers", target_layers);
    KvLayout layout;
    for (std::int64_t layer = 0; layer < target_layers; ++layer)
        layout.planes.push_back(slot_plane(kLatents, Plane::Of::target, layer, format, keys));
    return layout;
}

namespace {

// One stretch of memory with the plane's part of each page.
Expected<Buffer> allocate_pages(Device& device, const Plane& plane, std::int64_t page_count) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(plane.page_stride, page_count, &bytes))
        return fail(ErrorKind::exhausted, "a cache of {} pages of {} bytes does not fit in 64 bits",
                    page_count, plane.page_stride);
    return for_what(
        device.allocate(static_cast<std::size_t>(bytes)),
        fmt::format("the {} of a layer in {} pages of the cache", plane.name, page_count));
}

}  // namespace

Expected<KvStorage> KvStorage::create(Device& device, const KvLayout& layout,
                                      std::int64_t page_count) {
    // Page ids are 32-bit in block tables, slots 64-bit.
    if (page_count < 2 || page_count > (std::int64_t{1} << 31) - 1)
        return fail(ErrorKind::invalid,
                    "a cache of {} pages: at least 2 and at most {} are possible", page_count,
                    (std::int64_t{1} << 31) - 1);
    KvStorage storage;
    storage.layout_ = layout;
    storage.page_count_ = page_count;
    for (const Plane& plane : layout.planes) {
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory, allocate_pages(device, plane, page_count));
        storage.memory_.push_back(std::move(memory));
    }
    return storage;
}

mla::KvPages KvStorage::pages(std::size_t plane) {
    CHECK(plane < memory_.size(), "plane {} of {}", plane, memory_.size());
    const Plane& held = layout_.planes[plane];
    CHECK(held.of_slots, "slots of {}, which pages have as a whole", held.name);
    return {.data = memory_[plane].data(),
            .format = held.format,
            .page_tokens = kPageTokens,
            .page_stride = held.page_stride,
            .page_count = page_count_,
            .dims = held.columns};
}

LayerPages KvStorage::layer(Plane::Of model, std::int64_t layer) {
    LayerPages found{.latents = pages(layout_.index_of(kLatents, model, layer))};
    if (layout_.has(kIndexKeys, model, layer))
        found.index_keys = pages(layout_.index_of(kIndexKeys, model, layer));
    return found;
}

mla::KvPages KvStorage::target(std::int64_t layer) {
    return pages(layout_.index_of(kLatents, Plane::Of::target, layer));
}

mla::KvPages KvStorage::draft(std::int64_t layer) {
    return pages(layout_.index_of(kLatents, Plane::Of::draft, layer));
}

Matrix KvStorage::tail_states(std::int64_t draft_layer) {
    const std::size_t plane = layout_.index_of(kTailStates, Plane::Of::draft, draft_layer);
    return Matrix::of(memory_[plane].as<float>(), page_count_,
                      layout_.planes[plane].columns.latent);
}

Expected<void> KvStorage::fill(Device& device, std::byte value) {
    for (Buffer& memory : memory_)
        ESPALIER_RETURN_IF_ERROR(
            device.fill(device.stream(), memory.data(), value, memory.bytes()));
    return {};
}

}  // namespace espalier::cache
