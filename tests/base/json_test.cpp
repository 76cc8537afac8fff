// SPDX-License-Identifier: Apache-2.0
#include "base/json.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace espalier {
namespace {

TEST(Json, RefusesDepthByNumber) {
    const std::string deep = std::string(65, '[') + std::string(65, ']');
    const auto result = parse_json(deep, "config.json");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "config.json: nested deeper than 64 at byte 64");
    EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "config.json"));
}

TEST(Json, BracketsInStringsAreNotDepth) {
    EXPECT_TRUE(parse_json("\"" + std::string(500, '[') + "\\\"[\"", "x"));
}

TEST(Json, NamesTheFileOfMalformedText) {
    for (const char* text : {"", "{", "{\"a\":}", "nul", "\"\xff\"", "[1,]", "1e999999"}) {
        const auto result = parse_json(text, "bad.json");
        ASSERT_FALSE(result) << text;
        EXPECT_NE(result.error().message.find("bad.json"), std::string::npos);
    }
}

}  // namespace
}  // namespace espalier
