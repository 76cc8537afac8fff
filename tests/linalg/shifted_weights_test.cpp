// SPDX-License-Identifier: Apache-2.0
// Weights with zero points, as three libraries store them, against the numbers that these say.
#include "linalg/shifted_weights.hpp"

#include <random>

#include "linalg/packed.hpp"
#include "linalg/random_weights.hpp"
#include "linalg/round_weights.hpp"
#include "linalg/weight_at.hpp"

namespace espalier::linalg {
namespace {

using Layout = ShiftedSource::Layout;

constexpr std::int64_t kN = 40, kK = 256, kGroup = 64, kGroups = kK / kGroup;

// What a file holds, and the numbers of its description.
struct Stored {
    std::vector<std::byte> codes, zeros, scales;
    std::vector<int> code = std::vector<int>(kN * kK), zero = std::vector<int>(kN * kGroups);
    std::vector<float> scale = std::vector<float>(kN * kGroups);
};

void put(std::vector<std::byte>& words, std::int64_t word, int shift, int bits, int value) {
    std::uint32_t held;
    std::memcpy(&held, words.data() + word * 4, 4);
    held |= (static_cast<std::uint32_t>(value) & ((1u << bits) - 1)) << shift;
    std::memcpy(words.data() + word * 4, &held, 4);
}

// Drawn codes and zero points without a sign, and scales; `bits` of each.
Stored store(Layout layout, int bits, std::uint32_t seed) {
    std::mt19937 engine(seed);
    std::uniform_int_distribution<int> any(0, (1 << bits) - 1);
    std::uniform_real_distribution<float> scale(0.001f, 0.1f);
    Stored stored;
    stored.codes.resize(kN * kK * static_cast<std::size_t>(bits) / 8);
    stored.zeros.resize(kN * kGroups * static_cast<std::size_t>(bits) / 8);
    stored.scales.resize(kN * kGroups * 2);
    // AutoAWQ: bits 4 i of a word hold output order[i] of eight.
    constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const auto place = [&](std::int64_t n) {
        return 4 * static_cast<int>(std::find(kOrder, kOrder + 8, n % 8) - kOrder);
    };
    const int half = 1 << (bits - 1), per_word = 32 / bits;
    for (std::int64_t n = 0; n < kN; ++n) {
        for (std::int64_t k = 0; k < kK; ++k) {
            const int code = any(engine);
            stored.code[static_cast<std::size_t>(n * kK + k)] = code;
            if (layout == Layout::awq)
                put(stored.codes, k * (kN / 8) + n / 8, place(n), 4, code);
            else if (layout == Layout::packed)
                put(stored.codes, (n * kK + k) / per_word, static_cast<int>(k % per_word) * bits,
                    bits, code);
            else
                stored.codes[static_cast<std::size_t>(n * kK + k)] =
                    static_cast<std::byte>(code - half);
        }
        for (std::int64_t group = 0; group < kGroups; ++group) {
            const int zero = any(engine);
            const std::int64_t at = layout == Layout::awq ? group * kN + n : n * kGroups + group;
            stored.zero[static_cast<std::size_t>(n * kGroups + group)] = zero;
            store_element(stored.scales.data(), DType::f16, at, scale(engine));
            stored.scale[static_cast<std::size_t>(n * kGroups + group)] =
                load_element(stored.scales.data(), DType::f16, at);
            if (layout == Layout::awq)
                put(stored.zeros, group * (kN / 8) + n / 8, place(n), 4, zero);
            else if (layout == Layout::packed)
                put(stored.zeros, n / per_word * kGroups + group,
                    static_cast<int>(n % per_word) * bits, bits, zero);
            else
                stored.zeros[static_cast<std::size_t>(n * kGroups + group)] =
                    static_cast<std::byte>(zero - half);
        }
    }
    return stored;
}

TEST(ShiftedWeights, AreTheNumbersOfTheirDescription) {
    const struct {
        Layout layout;
        int bits;
    } kCases[] = {{Layout::awq, 4}, {Layout::packed, 4}, {Layout::packed, 8}, {Layout::bytes, 8}};
    CpuDevice device(2);
    for (const auto& [layout, bits] : kCases) {
        SCOPED_TRACE(fmt::format("layout {}, {} bits", static_cast<int>(layout), bits));
        const Stored stored = store(layout, bits, 7);
        WeightFormat format =
            grouped(bits == 4 ? WeightCode::int4 : WeightCode::int8, kGroup, ScaleType::f32);
        format.zero_points = true;
        const ShiftedWeights made =
            ShiftedWeights::make(device.pool(), {.layout = layout,
                                                 .format = format,
                                                 .n = kN,
                                                 .k = kK,
                                                 .row_stride = kK,
                                                 .codes = stored.codes.data(),
                                                 .scales = stored.scales.data(),
                                                 .zeros = stored.zeros.data()});
        const Weight packed = pack_or_die(device, made.source());
        std::vector<float> widened(kK);
        for (std::int64_t n = 0; n < kN; ++n) {
            widen_output(made.source(), n, widened.data());
            for (std::int64_t k = 0; k < kK; ++k) {
                const auto group = static_cast<std::size_t>(n * kGroups + k / kGroup);
                const double want =
                    (stored.code[static_cast<std::size_t>(n * kK + k)] - stored.zero[group]) *
                    double{stored.scale[group]};
                ASSERT_EQ(weight_at(packed.view(), 0, n, k), want) << n << " " << k;
                ASSERT_EQ(widened[static_cast<std::size_t>(k)], static_cast<float>(want));
            }
        }
    }
}

}  // namespace
}  // namespace espalier::linalg
