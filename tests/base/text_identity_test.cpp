// SPDX-License-Identifier: Apache-2.0
// Every field of an identity counts: two that differ in one are told apart by its name.
#include "base/text_identity.hpp"

#include <gtest/gtest.h>

#include "support/identities.hpp"

namespace espalier {
namespace {

TEST(TextIdentity, EveryFieldThatDiffersIsNamedWithBothValues) {
    const TextIdentity here = test::sample_identity();
    EXPECT_FALSE(difference(here, here));
    const std::vector<IdentityField> values = listed(here);
    const std::vector<TextIdentity> others = test::each_field_changed(here);
    ASSERT_EQ(others.size(), values.size());
    for (std::size_t i = 0; i < others.size(); ++i) {
        const auto found = difference(others[i], here);
        ASSERT_TRUE(found) << values[i].name;
        EXPECT_EQ(found->field, values[i].name);
        EXPECT_EQ(found->recorded, listed(others[i])[i].value);
        EXPECT_EQ(found->here, values[i].value);
        EXPECT_NE(found->recorded, found->here);
    }
}

TEST(TextIdentity, WhatIsNotKnownIsNotCompared) {
    const TextIdentity here = test::sample_identity();
    TextIdentity other = here;
    other.tokenizer.clear();
    EXPECT_FALSE(difference(other, here));
    EXPECT_FALSE(difference(here, other));
    other.family = "other";
    EXPECT_EQ(difference(other, here)->field, "family");
}

}  // namespace
}  // namespace espalier
