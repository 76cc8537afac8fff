// SPDX-License-Identifier: Apache-2.0
// Append and compact: what is stored, what is flagged, what is left alone.
#include "mla/storage.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.hpp"
#include "mla/implementation.hpp"

namespace espalier::conformance {
namespace {

using namespace mla;

class MlaStorage : public testing::TestWithParam<Implementation> {
  protected:
    static constexpr std::int64_t kPages = 3;
    static constexpr std::int64_t kTokens = 16;

    MlaStorage()
        : memory_(static_cast<std::size_t>(kPages * page_stride_bytes(GetParam().format, kTokens)),
                  kFill) {
        kv.data = memory_.data();
        kv.format = GetParam().format;
        kv.page_tokens = kTokens;
        kv.page_stride = page_stride_bytes(kv.format, kTokens);
        kv.page_count = kPages;
        kv.scale = 0.5f;
    }
    std::vector<double> slot(std::int64_t index) const {
        std::vector<double> columns(kKey);
        read_slot(kv, index, columns.data());
        return columns;
    }
    void append(const std::vector<float>& rows, const std::vector<std::int64_t>& slots,
                std::vector<std::uint8_t>* flags) {
        AppendCall call;
        call.tokens = static_cast<std::int64_t>(slots.size());
        call.latent = rows.data();
        call.latent_stride = kKey;
        call.rope = rows.data() + kLatent;
        call.rope_stride = kKey;
        call.slot = slots.data();
        call.kv = kv;
        call.nonfinite = flags == nullptr ? nullptr : flags->data();
        const Expected<void> done = device->run(
            2, 0, [&](OpContext& context) { return device->kernels().append(context, call); });
        ASSERT_TRUE(done) << done.error().message;
    }

    static constexpr std::byte kFill{0x11};
    std::vector<std::byte> memory_;
    KvPages kv;
    std::unique_ptr<Device> device = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(All, MlaStorage, testing::ValuesIn(usual_widths(all_implementations())),
                         implementation_name);

// Half a unit in the last place of each format, relative; e4m3 also has a smallest step (times its
// scale).
double allowed(KvFormat format, bool rope, double value, double scale) {
    const bool e4m3 = format == KvFormat::fp8_tensor || (format == KvFormat::fp8_token && !rope);
    if (e4m3) return std::max(std::fabs(value) * 0x1p-4, scale * 0x1p-10);
    if (format == KvFormat::f32) return 0.0;
    return std::fabs(value) * (format == KvFormat::fp16 ? 0x1p-11 : 0x1p-8) + 0x1p-25;
}

TEST_P(MlaStorage, AppendRoundsToNearestAndSkipsNegativeSlots) {
    Random random(41);
    const std::vector<std::int64_t> slots = {5, -1, 47, 16, 0};
    std::vector<float> rows(slots.size() * kKey);
    for (float& x : rows) x = random.normal() * 3.0f;
    std::fill_n(rows.begin() + 4 * kKey, kLatent, 0.0f);  // all zero: a token scale of nothing
    std::vector<std::uint8_t> flags(slots.size(), 7);
    append(rows, slots, &flags);
    EXPECT_EQ(flags, std::vector<std::uint8_t>(slots.size(), 7)) << "nothing was flushed";
    for (std::size_t token = 0; token < slots.size(); ++token) {
        if (slots[token] < 0) continue;
        const std::vector<double> stored = slot(slots[token]);
        const float* row = rows.data() + token * kKey;
        double largest = 0.0;
        for (std::int64_t d = 0; d < kLatent; ++d)
            largest = std::max(largest, std::fabs(static_cast<double>(row[d])));
        const double scale = kv.format == KvFormat::fp8_tensor ? 0.5 : largest / 448.0;
        for (std::int64_t d = 0; d < kKey; ++d)
            ASSERT_NEAR(stored[static_cast<std::size_t>(d)], static_cast<double>(row[d]),
                        allowed(kv.format, d >= kLatent, row[d], scale) * 1.0001)
                << "token " << token << ", column " << d;
    }
    // Nothing else was touched: the bytes of four slots changed at most.
    std::int64_t changed = 0;
    for (const std::byte byte : memory_) changed += byte != kFill;
    EXPECT_LE(changed, 4 * page_stride_bytes(kv.format, 16) / 16 + 4 * 8);
    append(rows, {-3, -3, -3, -3, -3}, nullptr);
}

TEST_P(MlaStorage, AppendFlushesNonFiniteAndFlagsTheToken) {
    std::vector<float> rows(3 * kKey, 1.0f);
    rows[7] = std::numeric_limits<float>::quiet_NaN();
    rows[kLatent + 3] = -std::numeric_limits<float>::infinity();
    rows[2 * kKey + 9] = 1e30f;  // finite, but not in fp16
    std::vector<std::uint8_t> flags(3, 7);
    append(rows, {1, 2, 3}, &flags);
    EXPECT_EQ(flags[0], 1);
    EXPECT_EQ(flags[1], 7);  // as it was
    EXPECT_EQ(flags[2], kv.format == KvFormat::fp16 ? 1 : 7);
    for (const std::int64_t index : {1, 2, 3})
        for (const double value : slot(index)) ASSERT_TRUE(std::isfinite(value));
    EXPECT_EQ(slot(1)[7], 0.0);
    EXPECT_EQ(slot(1)[kLatent + 3], 0.0);
    EXPECT_NEAR(slot(1)[8], 1.0, 1e-6);  // its neighbours stay
    if (kv.format == KvFormat::fp16) {
        EXPECT_EQ(slot(3)[9], 0.0);
    }
    if (kv.format == KvFormat::fp8_tensor) {
        EXPECT_EQ(slot(3)[9], 448.0 * 0.5);
    }
}

TEST_P(MlaStorage, CompactMovesAPathInOrder) {
    Random random(42);
    std::vector<std::int64_t> slots(48);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<float> rows(slots.size() * kKey);
    for (float& x : rows) x = random.normal();
    append(rows, slots, nullptr);
    std::vector<std::vector<double>> before;
    for (const std::int64_t index : slots) before.push_back(slot(index));
    // Overlapping and across a page: 14 ← 14, 15 ← 17, 16 ← 18, 17 ← 40.
    const std::vector<std::int64_t> source = {14, 17, 18, 40};
    const std::vector<std::int64_t> destination = {14, 15, 16, 17};
    CompactCall call;
    call.moves = 4;
    call.source = source.data();
    call.destination = destination.data();
    call.kv = kv;
    ASSERT_TRUE(device->run(
        1, 0, [&](OpContext& context) { return device->kernels().compact(context, call); }));
    for (std::int64_t index = 0; index < 48; ++index) {
        const auto moved = std::find(destination.begin(), destination.end(), index);
        const std::int64_t from =
            moved == destination.end()
                ? index
                : source[static_cast<std::size_t>(moved - destination.begin())];
        ASSERT_EQ(slot(index), before[static_cast<std::size_t>(from)]) << index;
    }
}

}  // namespace
}  // namespace espalier::conformance
