// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_storage.hpp"

#include <gtest/gtest.h>

#include "base/cpu_device.hpp"

namespace espalier::cache {
namespace {

TEST(KvStorage, OnePageIdIsGoodForEveryLayer) {
    const KvLayout layout = make_layout(3, mla::KvFormat::bf16);
    EXPECT_EQ(layout.bytes_per_page(), 3 * 64 * 576 * 2);
    EXPECT_EQ(layout.bytes_per_token(), 3 * 576 * 2);
    CpuDevice device(1);
    auto storage = KvStorage::create(device, layout, 5);
    ASSERT_TRUE(storage);
    for (std::int64_t layer = 0; layer < 3; ++layer) {
        const mla::KvPages pages = storage->target(layer);
        EXPECT_EQ(pages.page_count, 5);
        EXPECT_EQ(pages.page_tokens, kPageTokens);
        EXPECT_EQ(pages.page_stride, 64 * 576 * 2);
        pages.data[4 * pages.page_stride + pages.page_stride - 1] =
            std::byte{1};  // the last byte is ours
    }
    EXPECT_NE(storage->target(0).data, storage->target(1).data);
}

TEST(KvStorage, RefusesImpossibleSizes) {
    const KvLayout layout = make_layout(1, mla::KvFormat::f32);
    CpuDevice device(1);
    EXPECT_FALSE(KvStorage::create(device, layout, 1));
    EXPECT_FALSE(KvStorage::create(device, layout, std::int64_t{1} << 31));
    EXPECT_FALSE(KvStorage::create(device, layout, -5));
}

}  // namespace
}  // namespace espalier::cache
