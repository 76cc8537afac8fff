// SPDX-License-Identifier: Apache-2.0
// Equality with the reference libraries on committed strings.
#include <gtest/gtest.h>

#include <string>

#include "text/goldens.hpp"

namespace espalier::text {
namespace {

struct Folder {
    const char* name;
    std::size_t least_strings;
};

class Goldens : public testing::TestWithParam<Folder> {};

TEST_P(Goldens, IdsEqualTheReference) {
    const auto tokenizer = Tokenizer::load(kGoldenData / GetParam().name);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    expect_goldens(*tokenizer, GetParam().name, GetParam().least_strings);
}

INSTANTIATE_TEST_SUITE_P(Small, Goldens,
                         testing::Values(Folder{"deepseek_v3_small", 3200},
                                         Folder{"deepseek_v2_small", 1000},
                                         Folder{"gpt2_small", 500}, Folder{"kimi_small", 2000},
                                         Folder{"glm_small", 1000}),
                         [](const auto& folder) { return std::string(folder.param.name); });

}  // namespace
}  // namespace espalier::text
