// SPDX-License-Identifier: Apache-2.0
// Equality with the reference libraries on committed strings (tools/make_tokenizer_goldens.py made
// them).
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/mapped_file.hpp"
#include "support/paths.hpp"
#include "text/tokenizer.hpp"

namespace espalier::text {
namespace {

const std::filesystem::path kData =
    std::filesystem::path(test::source_directory()) / "tests/text/data";

class Reader {
  public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    bool done() const { return bytes_.empty(); }
    template <typename T>
    T number() {
        T value{};
        std::memcpy(&value, text(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view text(std::size_t length) {
        if (length > bytes_.size()) throw std::runtime_error("goldens.bin ends too early");
        const std::string_view taken = bytes_.substr(0, length);
        bytes_.remove_prefix(length);
        return taken;
    }

  private:
    std::string_view bytes_;
};

struct Folder {
    const char* name;
    std::size_t least_strings;
};

class Goldens : public testing::TestWithParam<Folder> {};

TEST_P(Goldens, IdsEqualTheReference) {
    const auto tokenizer = Tokenizer::load(kData / GetParam().name);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const auto file = read_text_file(kData / GetParam().name / "goldens.bin", 1 << 20);
    ASSERT_TRUE(file) << file.error().message;
    Reader reader(*file);
    std::size_t strings = 0;
    for (; !reader.done(); ++strings) {
        const bool parsed = reader.number<std::uint8_t>() == 1;
        const std::string_view text = reader.text(reader.number<std::uint16_t>());
        std::vector<TokenId> expected(reader.number<std::uint16_t>());
        for (TokenId& id : expected) id = reader.number<std::uint16_t>();
        const auto ids =
            tokenizer->encode(text, parsed ? SpecialTokens::parsed : SpecialTokens::as_text);
        ASSERT_TRUE(ids) << ids.error().message;
        ASSERT_EQ(*ids, expected) << "string " << strings << ": "
                                  << testing::PrintToString(std::string(text));
    }
    EXPECT_GE(strings, GetParam().least_strings);
}

INSTANTIATE_TEST_SUITE_P(Small, Goldens,
                         testing::Values(Folder{"deepseek_v3_small", 3200},
                                         Folder{"deepseek_v2_small", 1000},
                                         Folder{"gpt2_small", 500}, Folder{"kimi_small", 2000},
                                         Folder{"glm_small", 1000}),
                         [](const auto& folder) { return std::string(folder.param.name); });

}  // namespace
}  // namespace espalier::text
