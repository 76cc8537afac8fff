// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_storage.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(KvStorage, DraftLayersAndTailStatesArePlanesOfTheTargetsPages) {
    CpuDevice device(1);
    KvLayout layout = make_layout(2, mla::KvFormat::f32);
    layout.planes.push_back(
        slot_plane(kLatents, Plane::Of::draft, 0, mla::KvFormat::bf16, KeyDims{}));
    layout.planes.push_back(tail_plane(0, 100));
    EXPECT_EQ(layout.bytes_per_page(), 2 * 64 * 576 * 4 + 64 * 576 * 2 + 400);
    EXPECT_EQ(layout.layers(Plane::Of::target), 2);
    EXPECT_EQ(layout.layers(Plane::Of::draft), 1);
    auto storage = KvStorage::create(device, layout, 7);
    ASSERT_TRUE(storage);
    const mla::KvPages pages = storage->draft(0);
    EXPECT_EQ(pages.format, mla::KvFormat::bf16);
    EXPECT_EQ(pages.page_stride, 64 * 576 * 2);
    EXPECT_EQ(pages.page_count, 7);
    pages.data[7 * pages.page_stride - 1] = std::byte{1};  // the last byte is ours
    EXPECT_THROW(storage->draft(1), CheckFailure);
    const Matrix tails = storage->tail_states(0);
    EXPECT_EQ(tails.rows, 7);
    EXPECT_EQ(tails.cols, 100);
    tails.row<float>(6)[99] = 1.0f;
    EXPECT_THROW(storage->tail_states(1), CheckFailure);
    EXPECT_THROW(storage->pages(3), CheckFailure);  // pages have it as a whole
    EXPECT_EQ(storage->target(0).format, mla::KvFormat::f32);
}

// 128 codes and a scale for each slot, as no model here has them: the seam for a further plane.
TEST(KvStorage, AFurtherPlaneIsCountedAllocatedFilledAndNamedLikeTheFirst) {
    constexpr std::string_view kMarks = "marks";
    const KeyDims columns{128, 0};
    KvLayout layout = make_layout(2, mla::KvFormat::bf16);
    const std::int64_t latents = layout.bytes_per_page();
    for (const std::int64_t layer : {0, 1})
        layout.planes.push_back(
            slot_plane(kMarks, Plane::Of::target, layer, mla::KvFormat::fp8_token, columns));
    EXPECT_EQ(layout.bytes_per_page(), latents + 2 * 64 * 132);
    EXPECT_EQ(layout.bytes_per_token(), 2 * (576 * 2 + 132));
    EXPECT_EQ(layout.layers(Plane::Of::target), 2);
    EXPECT_EQ(layout.formats(), "bf16, marks fp8_token");
    EXPECT_EQ(layout.layer(Plane::Of::target, 1).planes.size(), 2);

    CpuDevice device(1);
    auto storage = KvStorage::create(device, layout, 3);
    ASSERT_TRUE(storage);
    const mla::KvPages marks = storage->pages(layout.index_of(kMarks, Plane::Of::target, 1));
    EXPECT_EQ(marks.dims, columns);
    EXPECT_EQ(marks.page_stride, 64 * 132);
    ASSERT_TRUE(storage->fill(device, std::byte{0xFF}));
    for (std::size_t plane = 0; plane < layout.planes.size(); ++plane) {
        const mla::KvPages pages = storage->pages(plane);
        EXPECT_EQ(std::count(pages.data, pages.data + 3 * pages.page_stride, std::byte{0xFF}),
                  3 * pages.page_stride)
            << layout.planes[plane].name;
    }
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
              "the latents of a layer in 2 pages of the cache: cannot allocate 147456 bytes");
}

}  // namespace
}  // namespace espalier::cache
