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

TEST(KvStorage, DraftLayersAndTailStatesHaveThePagesOfTheTarget) {
    CpuDevice device(1);
    KvLayout layout = make_layout(2, mla::KvFormat::f32);
    layout.draft = make_layout(1, mla::KvFormat::bf16).target;
    layout.tail_hidden = 100;
    EXPECT_EQ(layout.bytes_per_page(), 2 * 64 * 576 * 4 + 64 * 576 * 2 + 400);
    auto storage = KvStorage::create(device, layout, 7);
    ASSERT_TRUE(storage);
    const mla::KvPages pages = storage->draft(0);
    EXPECT_EQ(pages.format, mla::KvFormat::bf16);
    EXPECT_EQ(pages.page_stride, 64 * 576 * 2);
    EXPECT_EQ(pages.page_count, 7);
    pages.data[7 * pages.page_stride - 1] = std::byte{1};  // the last byte is ours
    EXPECT_THROW(storage->draft(1), CheckFailure);
    const Matrix tails = storage->tail_hidden();
    EXPECT_EQ(tails.rows, 7);
    EXPECT_EQ(tails.cols, 100);
    tails.row<float>(6)[99] = 1.0f;
    EXPECT_EQ(storage->target(0).format, mla::KvFormat::f32);
}

TEST(KvStorage, RefusesImpossibleSizes) {
    const KvLayout layout = make_layout(1, mla::KvFormat::f32);
    CpuDevice device(1);
    EXPECT_FALSE(KvStorage::create(device, layout, 1));
    EXPECT_FALSE(KvStorage::create(device, layout, std::int64_t{1} << 31));
    EXPECT_FALSE(KvStorage::create(device, layout, -5));
}

// A device with room for so many bytes at a time.
class SmallDevice final : public CpuDevice {
  public:
    explicit SmallDevice(std::size_t most) : CpuDevice(1), most_(most) {}
    Expected<Buffer> allocate(std::size_t bytes) override {
        if (bytes > most_) return fail(ErrorKind::exhausted, "cannot allocate {} bytes", bytes);
        return CpuDevice::allocate(bytes);
    }

  private:
    std::size_t most_;
};

TEST(KvStorage, SaysWhoseMemoryWasRefused) {
    SmallDevice device(1000);
    const auto refused = KvStorage::create(device, make_layout(1, mla::KvFormat::bf16), 2);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message,
              "a layer of 2 pages of the cache: cannot allocate 147456 bytes");
}

}  // namespace
}  // namespace espalier::cache
