// SPDX-License-Identifier: Apache-2.0
#include "base/numeric.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace espalier {
namespace {

// Every code of a format, ascending in value: rounding must pick the nearest, ties to the even
// code.
template <typename Format, typename Code>
void expect_nearest_even(Format (*narrow)(float), std::vector<Code> positive_codes) {
    for (std::size_t i = 0; i + 1 < positive_codes.size(); ++i) {
        const double low = to_float(Format{positive_codes[i]});
        const double high = to_float(Format{positive_codes[i + 1]});
        ASSERT_LT(low, high);
        const auto middle = static_cast<float>((low + high) / 2);
        const Code even = positive_codes[i] % 2 == 0 ? positive_codes[i] : positive_codes[i + 1];
        EXPECT_EQ(narrow(static_cast<float>(low)).bits, positive_codes[i]);
        EXPECT_EQ(narrow(middle).bits, even) << low << " " << high;
        EXPECT_EQ(narrow(std::nextafter(middle, 0.0f)).bits, positive_codes[i]);
        EXPECT_EQ(narrow(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits,
                  positive_codes[i + 1]);
        EXPECT_EQ(to_float(narrow(-middle)), -to_float(narrow(middle)));
    }
}

TEST(Numeric, E4m3RoundsToNearestEven) {
    std::vector<std::uint8_t> codes;
    for (unsigned code = 0; code <= 0x7e; ++code) codes.push_back(static_cast<std::uint8_t>(code));
    expect_nearest_even<E4m3, std::uint8_t>(to_e4m3, codes);
    EXPECT_EQ(to_float(to_e4m3(1e30f)), 448.0f);
    EXPECT_EQ(to_float(to_e4m3(-1e30f)), -448.0f);
    EXPECT_TRUE(std::isnan(to_float(to_e4m3(std::nanf("")))));
}

TEST(Numeric, Fp16RoundsToNearestEven) {
    std::vector<std::uint16_t> codes;
    for (unsigned code = 0; code <= 0x7bff; ++code)
        codes.push_back(static_cast<std::uint16_t>(code));
    expect_nearest_even<Fp16, std::uint16_t>(to_fp16, codes);
    EXPECT_TRUE(std::isinf(to_float(to_fp16(65520.0f))));
    EXPECT_EQ(to_float(to_fp16(65519.0f)), 65504.0f);
    EXPECT_TRUE(std::isnan(to_float(to_fp16(std::nanf("")))));
}

TEST(Numeric, Bf16RoundsToNearestEven) {
    std::vector<std::uint16_t> codes;
    for (unsigned code = 0x80; code <= 0x7f7f; ++code)
        codes.push_back(static_cast<std::uint16_t>(code));
    expect_nearest_even<Bf16, std::uint16_t>(to_bf16, codes);
    EXPECT_TRUE(std::isnan(to_float(to_bf16(std::nanf("")))));
    EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::infinity()))));
}

}  // namespace
}  // namespace espalier
