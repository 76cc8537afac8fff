// SPDX-License-Identifier: Apache-2.0
// Committed strings and the ids that the reference libraries give them
// (tools/make_tokenizer_goldens.py made them).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.hpp"
#include "support/paths.hpp"
#include "text/tokenizer.hpp"

namespace espalier::text {

inline const std::filesystem::path kGoldenData =
    std::filesystem::path(test::source_directory()) / "tests/text/data";

class GoldenReader {
  public:
    explicit GoldenReader(std::string_view bytes) : bytes_(bytes) {}
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

// Every string of the folder's goldens.bin.
inline void expect_goldens(const Tokenizer& tokenizer, const std::string& folder,
                           std::size_t least_strings) {
    const auto file = read_text_file(kGoldenData / folder / "goldens.bin", 1 << 20);
    ASSERT_TRUE(file) << file.error().message;
    GoldenReader reader(*file);
    std::size_t strings = 0;
    for (; !reader.done(); ++strings) {
        const bool parsed = reader.number<std::uint8_t>() == 1;
        const std::string_view text = reader.text(reader.number<std::uint16_t>());
        std::vector<TokenId> expected(reader.number<std::uint16_t>());
        for (TokenId& id : expected) id = reader.number<std::uint16_t>();
        const auto ids =
            tokenizer.encode(text, parsed ? SpecialTokens::parsed : SpecialTokens::as_text);
        ASSERT_TRUE(ids) << ids.error().message;
        ASSERT_EQ(*ids, expected) << "string " << strings << ": "
                                  << testing::PrintToString(std::string(text));
    }
    EXPECT_GE(strings, least_strings);
}

}  // namespace espalier::text
