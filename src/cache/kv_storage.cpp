// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_storage.hpp"

#include "base/check.hpp"

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
    for (const KvLayer& layer : layout.target) {
        std::int64_t bytes = 0;
        if (__builtin_mul_overflow(layer.page_stride, page_count, &bytes))
            return fail(ErrorKind::exhausted,
                        "a cache of {} pages of {} bytes does not fit in 64 bits", page_count,
                        layer.page_stride);
        ESPALIER_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(static_cast<std::size_t>(bytes)));
        storage.target_.push_back(std::move(buffer));
    }
    return storage;
}

mla::KvPages KvStorage::target(std::int64_t layer) {
    CHECK(layer >= 0 && layer < static_cast<std::int64_t>(target_.size()), "layer {} of {}", layer,
          target_.size());
    const auto index = static_cast<std::size_t>(layer);
    mla::KvPages pages;
    pages.data = target_[index].data();
    pages.format = layout_.target[index].format;
    pages.page_tokens = kPageTokens;
    pages.page_stride = layout_.target[index].page_stride;
    pages.page_count = page_count_;
    return pages;
}

}  // namespace espalier::cache
