// SPDX-License-Identifier: Apache-2.0
// A page with a further plane, as no model here has one: every part of the engine that goes by the
// list of planes treats it as it treats latents.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cache/kv_storage.hpp"
#include "draft/draft_set.hpp"
#include "engine/model_target.hpp"
#include "engine/tiny_target.hpp"

namespace espalier::engine {
namespace {

using cache::KvLayout;
using cache::Plane;

constexpr std::string_view kMarks = "marks";
constexpr KeyDims kColumns{128, 0};
constexpr std::int64_t kMarkBytes = 132;  // codes and a scale

KvLayout layout_with_marks(const KvLayout& layout) {
    KvLayout result = layout;
    for (std::int64_t layer = 0; layer < layout.layers(Plane::Of::target); ++layer)
        result.planes.push_back(
            slot_plane(kMarks, Plane::Of::target, layer, mla::KvFormat::fp8_token, kColumns));
    return result;
}

// One number for each slot of a plane, in every byte of it.
void mark_slots(const mla::KvPages& kv) {
    std::vector<float> columns(static_cast<std::size_t>(kv.dims.key()));
    for (std::int64_t slot = 0; slot < kv.page_count * kv.page_tokens; ++slot) {
        std::ranges::fill(columns, static_cast<float>(slot + 1));
        mla::write_slot(kv, slot, columns.data(), columns.data() + kv.dims.latent);
    }
}

std::vector<double> numbers(const mla::KvPages& kv) {
    std::vector<double> result;
    std::vector<double> columns(static_cast<std::size_t>(kv.dims.key()));
    for (std::int64_t slot = 0; slot < kv.page_count * kv.page_tokens; ++slot) {
        mla::read_slot(kv, slot, columns.data());
        EXPECT_EQ(std::ranges::count(columns, columns[0]), std::ssize(columns)) << slot;
        result.push_back(columns[0]);
    }
    return result;
}

TEST(Planes, AFurtherPlaneIsPoisonedCountedAndMovedLikeLatents) {
    TinyTarget& tiny = tiny_target(Family::v3);
    const KvLayout own = (*tiny.model)->kv_layout(), layout = layout_with_marks(own);
    const std::int64_t layers = own.layers(Plane::Of::target);
    const auto target = ModelTarget::create(**tiny.model, layout, 3, {.poison = true}).value();
    EXPECT_EQ(target->info().kv_layout.bytes_per_page(),
              own.bytes_per_page() + layers * 64 * kMarkBytes);
    cache::KvStorage& storage = target->storage();
    for (std::size_t plane = 0; plane < layout.planes.size(); ++plane) {
        const mla::KvPages kv = storage.pages(plane);
        const std::int64_t bytes = kv.page_count * kv.page_stride;
        EXPECT_EQ(std::count(kv.data, kv.data + bytes, std::byte{0xFF}), bytes) << plane;
        mark_slots(kv);
    }
    // Within a page and from one page into another.
    const std::array<std::int64_t, 4> source = {70, 73, 75, 130}, to = {69, 70, 71, 72};
    std::vector<double> want(3 * 64);
    for (std::size_t slot = 0; slot < want.size(); ++slot)
        want[slot] = static_cast<double>(slot + 1);
    for (std::size_t i = 0; i < source.size(); ++i)
        want[static_cast<std::size_t>(to[i])] = static_cast<double>(source[i] + 1);
    ASSERT_TRUE(target->compact(source, to));
    for (std::size_t plane = 0; plane < layout.planes.size(); ++plane) {
        const std::vector<double> got = numbers(storage.pages(plane));
        for (std::size_t slot = 0; slot < want.size(); ++slot)  // 8 bits of a fraction at least
            ASSERT_NEAR(got[slot], want[slot], want[slot] * 0x1p-8)
                << layout.planes[plane].name << " of layer " << layout.planes[plane].layer
                << ", slot " << slot;
    }
}

TEST(Planes, DraftLayersHaveThePlanesOfTheTargetsAndATailState) {
    const KvLayout target = layout_with_marks(cache::make_layout(2, mla::KvFormat::bf16));
    const KvLayout all =
        draft::layout_with(target, std::array{draft::DraftPlanes{96}, draft::DraftPlanes{64}});
    EXPECT_EQ(all.bytes_per_page(), 4 * 64 * (576 * 2 + kMarkBytes) + (96 + 64) * 4);
    EXPECT_EQ(all.formats(), target.formats());  // drafts change no text
    for (const std::int64_t layer : {0, 1}) {
        const KvLayout draft = all.layer(Plane::Of::draft, layer);
        ASSERT_EQ(draft.planes.size(), 3);
        EXPECT_EQ(draft.planes[0].name, cache::kLatents);
        EXPECT_EQ(draft.planes[1].name, kMarks);
        EXPECT_EQ(draft.planes[1].page_stride, 64 * kMarkBytes);
        EXPECT_EQ(draft.planes[2].name, cache::kTailStates);
        EXPECT_EQ(draft.planes[2].columns.latent, layer == 0 ? 96 : 64);
    }
}

}  // namespace
}  // namespace espalier::engine
