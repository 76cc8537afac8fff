// SPDX-License-Identifier: Apache-2.0
#include "base/number_mode.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

std::string refusal(NumberMode asked, std::string_view family, WeightCode weights) {
    const auto mode = resolve_number_mode(asked, family, weights);
    if (mode) return "";
    EXPECT_EQ(mode.error().field, "activations");
    return mode.error().message;
}

TEST(NumberMode, IsResolvedByDeviceAndWeights) {
    for (const std::string_view family : {"cpu", "hopper"})
        for (const CodeFacts& code : kCodes) {
            const auto weights = static_cast<WeightCode>(&code - kCodes.data());
            EXPECT_EQ(resolve_number_mode(NumberMode::own, family, weights), NumberMode::own);
            const auto automatic = resolve_number_mode(std::nullopt, family, weights);
            ASSERT_TRUE(automatic);
            if (!takes_number_mode(weights)) {
                EXPECT_EQ(*automatic, NumberMode::own);
            }
            EXPECT_EQ(resolve_number_mode(*automatic, family, weights), *automatic);
        }
    EXPECT_EQ(resolve_number_mode(NumberMode::int8, "cpu", WeightCode::int4), NumberMode::int8);
    EXPECT_EQ(resolve_number_mode(NumberMode::int8, "cpu", WeightCode::int8), NumberMode::int8);
}

TEST(NumberMode, RefusesByName) {
    EXPECT_EQ(refusal(NumberMode::int8, "hopper", WeightCode::int4),
              "activations: int8: not on the device family hopper");
    EXPECT_EQ(refusal(NumberMode::fp8, "hopper", WeightCode::int8),
              "activations: fp8: not on the device family hopper");
    EXPECT_EQ(refusal(NumberMode::fp8, "cpu", WeightCode::int8),
              "activations: fp8: not on the device family cpu");
    EXPECT_EQ(refusal(NumberMode::int8, "cpu", WeightCode::bf16),
              "activations: int8, but the weights are bf16: products of int8 and int4 ones round "
              "their inputs");
}

TEST(NumberMode, IsKnownByItsName) {
    for (const NumberMode mode : kNumberModes) EXPECT_EQ(parse_number_mode(name_of(mode)), mode);
    EXPECT_EQ(parse_number_mode("auto"), std::nullopt);
}

}  // namespace
}  // namespace espalier
