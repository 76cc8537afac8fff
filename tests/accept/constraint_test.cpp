// SPDX-License-Identifier: Apache-2.0
// Reasoning along a path: its phase, its count and its budget follow the tokens down and up again.
// tests/engine/grammar_masks_test.cpp has the same with grammars.
#include "accept/constraint.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

namespace espalier::accept {
namespace {

using Legal = Constraint::Legal;

constexpr std::int64_t kVocabulary = 70;
constexpr std::array<std::int32_t, 1> kEos = {1};

Constraint reasoning(std::optional<std::int64_t> budget, bool open = true) {
    return {
        nullptr, {.end_token_ids = {40, 41}, .open = open, .budget = budget}, kEos, kVocabulary};
}

TEST(Constraint, ReasoningEndsWithAnyOfItsMarkers) {
    for (const TokenId marker : {40, 41}) {
        Constraint constraint = reasoning({});
        EXPECT_TRUE(constraint.reasoning());
        for (const TokenId token : {7, 8, 7}) EXPECT_TRUE(constraint.commit(token));
        EXPECT_EQ(constraint.reasoning_tokens(), 3);
        EXPECT_TRUE(constraint.commit(marker));
        EXPECT_FALSE(constraint.reasoning());
        // In the answer a marker is a token like others.
        for (const TokenId token : {7, 40, 41}) EXPECT_TRUE(constraint.commit(token));
        EXPECT_EQ(constraint.reasoning_tokens(), 3);
        EXPECT_EQ(constraint.legal(), Legal::anything);
        EXPECT_TRUE(constraint.root_mask().empty());
    }
    EXPECT_FALSE(reasoning({}, false).reasoning());
}

TEST(Constraint, AnExhaustedBudgetLeavesTheFirstMarkerAlone) {
    Constraint constraint = reasoning(2);
    EXPECT_EQ(constraint.legal(), Legal::anything);
    EXPECT_FALSE(constraint.forced().token.has_value());
    for (const TokenId token : {7, 7}) EXPECT_TRUE(constraint.commit(token));
    ASSERT_EQ(constraint.legal(), Legal::masked);
    EXPECT_EQ(constraint.forced().token, 40);
    const std::vector<std::uint32_t> mask(constraint.root_mask().begin(),
                                          constraint.root_mask().end());
    EXPECT_EQ(mask, (std::vector<std::uint32_t>{0, 1u << 8, 0}));
    for (const TokenId token : {7, 41, 1}) EXPECT_FALSE(constraint.descend(token)) << token;
    EXPECT_TRUE(constraint.descend(40));
    EXPECT_EQ(constraint.legal(), Legal::anything);
    constraint.ascend();
    EXPECT_EQ(constraint.legal(), Legal::masked);
    EXPECT_EQ(constraint.reasoning_tokens(), 2);

    Constraint none = reasoning(0);
    EXPECT_EQ(none.legal(), Legal::masked);
    EXPECT_TRUE(none.failure().empty());
    EXPECT_FALSE(none.commit(7));
    EXPECT_FALSE(none.failure().empty());
}

// 0 ─┬─ 1 (7) ─┬─ 3 (7) ─── 5 (7): one too many
//    │         └─ 4 (40) ── 6 (7)
//    └─ 2 (41)
TEST(Constraint, VisitsEachLegalNodeWithItsOwnState) {
    const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 1, 3, 4};
    const std::vector<std::int32_t> tokens = {9, 7, 41, 7, 40, 7, 7};
    Constraint constraint = reasoning(2);
    struct Seen {
        bool reasoning;
        std::int64_t count;
        bool operator==(const Seen&) const = default;
    };
    std::map<std::int32_t, Seen> seen;
    visit_legal({parents, tokens}, constraint, [&](std::int32_t node) {
        EXPECT_TRUE(
            seen.emplace(node, Seen{constraint.reasoning(), constraint.reasoning_tokens()}).second);
    });
    const std::map<std::int32_t, Seen> expected = {{0, {true, 0}},  {1, {true, 1}},
                                                   {2, {false, 0}}, {3, {true, 2}},
                                                   {4, {false, 1}}, {6, {false, 1}}};
    EXPECT_EQ(seen, expected);
    EXPECT_TRUE(constraint.reasoning());
    EXPECT_EQ(constraint.reasoning_tokens(), 0);
}

}  // namespace
}  // namespace espalier::accept
