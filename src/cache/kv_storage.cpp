// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_storage.hpp"

#include "base/check.hpp"
#include "base/for_what.hpp"

namespace espalier::cache {

std::int64_t KvLayout::bytes_per_page() const {
    std::int64_t bytes = tail_hidden * static_cast<std::int64_t>(sizeof(float));
    for (const KvLayer& layer : target) bytes += layer.page_stride;
    for (const KvLayer& layer : draft) bytes += layer.page_stride;
    return bytes;
}

KvLayout make_layout(std::int64_t target_layers, mla::KvFormat format) {
    CHECK(target_layers > 0, "{} layers", target_layers);
    const KvLayer layer{format, mla::page_stride_bytes(format, kPageTokens)};
    KvLayout layout;
    layout.target.assign(static_cast<std::size_t>(target_layers), layer);
    return layout;
}

namespace {

// One stretch of memory with `page_bytes` for each page.
Expected<Buffer> allocate_pages(Device& device, std::int64_t page_bytes, std::int64_t page_count) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(page_bytes, page_count, &bytes))
        return fail(ErrorKind::exhausted, "a cache of {} pages of {} bytes does not fit in 64 bits",
                    page_count, page_bytes);
    return for_what(device.allocate(static_cast<std::size_t>(bytes)),
                    fmt::format("a layer of {} pages of the cache", page_count));
}

Expected<std::vector<Buffer>> allocate_layers(Device& device, const std::vector<KvLayer>& layers,
                                              std::int64_t page_count) {
    std::vector<Buffer> buffers;
    for (const KvLayer& layer : layers) {
        ESPALIER_ASSIGN_OR_RETURN(Buffer buffer,
                                  allocate_pages(device, layer.page_stride, page_count));
        buffers.push_back(std::move(buffer));
    }
    return buffers;
}

mla::KvPages pages_of(Buffer& buffer, const KvLayer& layer, std::int64_t page_count) {
    mla::KvPages pages;
    pages.data = buffer.data();
    pages.format = layer.format;
    pages.page_tokens = kPageTokens;
    pages.page_stride = layer.page_stride;
    pages.page_count = page_count;
    return pages;
}

std::size_t index_of(std::int64_t layer, std::size_t layers) {
    CHECK(layer >= 0 && layer < static_cast<std::int64_t>(layers), "layer {} of {}", layer, layers);
    return static_cast<std::size_t>(layer);
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
    ESPALIER_ASSIGN_OR_RETURN(storage.target_, allocate_layers(device, layout.target, page_count));
    ESPALIER_ASSIGN_OR_RETURN(storage.draft_, allocate_layers(device, layout.draft, page_count));
    ESPALIER_ASSIGN_OR_RETURN(
        storage.tail_hidden_,
        allocate_pages(device, layout.tail_hidden * static_cast<std::int64_t>(sizeof(float)),
                       page_count));
    return storage;
}

mla::KvPages KvStorage::target(std::int64_t layer) {
    const std::size_t index = index_of(layer, target_.size());
    return pages_of(target_[index], layout_.target[index], page_count_);
}

mla::KvPages KvStorage::draft(std::int64_t layer) {
    const std::size_t index = index_of(layer, draft_.size());
    return pages_of(draft_[index], layout_.draft[index], page_count_);
}

Matrix KvStorage::tail_hidden() {
    return Matrix::of(tail_hidden_.as<float>(), page_count_, layout_.tail_hidden);
}

Expected<void> KvStorage::fill(Device& device, std::byte value) {
    const auto all = [&](Buffer& memory) {
        return device.fill(device.stream(), memory.data(), value, memory.bytes());
    };
    for (Buffer& layer : target_) ESPALIER_RETURN_IF_ERROR(all(layer));
    for (Buffer& layer : draft_) ESPALIER_RETURN_IF_ERROR(all(layer));
    return all(tail_hidden_);
}

}  // namespace espalier::cache
