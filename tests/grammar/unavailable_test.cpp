// SPDX-License-Identifier: Apache-2.0
// A build without xgrammar's sources refuses structured output by name.
#include <gtest/gtest.h>

#include "grammar/compiler.hpp"
#include "grammar/small_vocabulary.hpp"

namespace {

using namespace espalier;

TEST(Grammars, AreRefusedWhereTheBuildHasNone) {
    EXPECT_FALSE(grammar::available());
    grammar::Compiler compiler(test::SmallVocabulary().make());
    const auto compiled = compiler.compile({.kind = grammar::Kind::json_object});
    ASSERT_FALSE(compiled);
    EXPECT_EQ(compiled.error().kind, ErrorKind::unsupported);
    EXPECT_NE(compiled.error().message.find("json_object"), std::string::npos);
}

}  // namespace
