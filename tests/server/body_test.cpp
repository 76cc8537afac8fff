// SPDX-License-Identifier: Apache-2.0
#include "server/body.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace espalier::server {
namespace {

std::string refusal(const std::string& body) {
    const auto parsed = parse_body(body);
    return parsed ? "accepted" : parsed.error().message;
}

TEST(Body, TakesAnObject) {
    const auto parsed = parse_body(R"( {"a": [1, 2.5, "é", null], "b": {"a": true}} )");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ((*parsed)["a"].size(), 4u);
}

TEST(Body, RefusesWhatTwoReadersWouldReadDifferently) {
    for (const char* body : {"",
                             "null",
                             "[]",
                             "3",
                             "\"{\"",
                             "{",
                             "{\"a\":1}x",
                             "{'a':1}",
                             "{\"a\":NaN}",
                             "{\"a\":Infinity}",
                             "{\"a\":1e999}",
                             "{\"a\":01}",
                             "{\"a\":\"\xff\"}",
                             "{\"a\":\"\xc3\"}",
                             "{\"a\":\"\xed\xa0\x80\"}",
                             "{\"a\":\"\\ud800\"}",
                             "{\"a\":\"\n\"}",
                             "{\"a\":1,}",
                             "{\"a\":1,\"a\":1}",
                             "{\"x\":{\"a\":1,\"b\":2,\"a\":3}}",
                             "{\"x\":[{\"a\":1,\"a\":3}]}",
                             "// \n{\"a\":1}"})
        EXPECT_NE(refusal(body), "accepted") << body;
    EXPECT_EQ(refusal(R"({"x":{"seed":1,"seed":2}})"), "seed: stands twice in one object");
    // The same key in two objects is no repetition.
    EXPECT_EQ(refusal(R"({"a":{"k":1},"b":{"k":1},"k":[{"k":2},{"k":3}]})"), "accepted");
}

TEST(Body, ErrorsAreInPlainWords) {
    EXPECT_TRUE(refusal("{").starts_with("the body is not valid JSON: parse error at line 1"))
        << refusal("{");
    EXPECT_EQ(refusal(R"({"a":1e999})").find("json.exception"), std::string::npos);
}

TEST(Body, BoundsTheDepth) {
    const auto nested = [](int depth) {
        return R"({"a":)" + std::string(static_cast<std::size_t>(depth), '[') +
               std::string(static_cast<std::size_t>(depth), ']') + "}";
    };
    EXPECT_EQ(refusal(nested(kMaxBodyDepth - 1)), "accepted");
    EXPECT_NE(refusal(nested(kMaxBodyDepth)), "accepted");
    EXPECT_NE(refusal(nested(1'000'000)), "accepted");
    EXPECT_NE(refusal(std::string(1'000'000, '[')), "accepted");
}

}  // namespace
}  // namespace espalier::server
