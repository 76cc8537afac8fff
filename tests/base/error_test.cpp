// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"

#include <gtest/gtest.h>

#include "base/for_what.hpp"

namespace espalier {
namespace {

Expected<int> refused() {
    return fail_field(ErrorKind::invalid, "top_p", "{}, not within {}…{}", 2.5, 0, 1);
}

Expected<std::string> handed_up() {
    ESPALIER_ASSIGN_OR_RETURN(const int value, refused());
    return std::to_string(value);
}

TEST(Error, OfAFieldNamesItTwice) {
    const Error error = handed_up().error();
    EXPECT_EQ(error.kind, ErrorKind::invalid);
    EXPECT_EQ(error.field, "top_p");
    EXPECT_EQ(error.message, "top_p: 2.5, not within 0…1");
}

TEST(Error, OfNoFieldHasNone) {
    const Expected<int> none = fail(ErrorKind::io, "'{}' is not opened", "x");
    EXPECT_EQ(none.error().field, "");
    EXPECT_EQ(none.error().message, "'x' is not opened");
}

TEST(Error, TakesAnotherNameForItsField) {
    const Error renamed = with_field(refused().error(), "--top-p");
    EXPECT_EQ(renamed.field, "--top-p");
    EXPECT_EQ(renamed.message, "--top-p: 2.5, not within 0…1");
    // Without a field, it stays as it is.
    const Error same = with_field({ErrorKind::io, "no such file"}, "--trace");
    EXPECT_EQ(same.message, "no such file");
    EXPECT_EQ(same.field, "");
}

TEST(Error, SaysWhatItWasFor) {
    const Expected<int> none = fail(ErrorKind::exhausted, "cannot allocate 9 bytes");
    EXPECT_EQ(for_what(none, "the weights").error().message,
              "the weights: cannot allocate 9 bytes");
    EXPECT_EQ(for_what(none, "the weights").error().kind, ErrorKind::exhausted);
    EXPECT_EQ(for_what(refused(), "the weights").error().message, "top_p: 2.5, not within 0…1");
    EXPECT_EQ(for_what(Expected<int>(3), "the weights").value(), 3);
}

}  // namespace
}  // namespace espalier
