// SPDX-License-Identifier: Apache-2.0
#include "base/gguf.hpp"

#include <gtest/gtest.h>

#include <random>

#include "support/gguf_writer.hpp"

namespace espalier {
namespace {

Expected<GgufHeader> parse(const std::string& bytes) {
    return parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf");
}

void expect_refused(const GgufWriter& file, std::initializer_list<std::string_view> parts) {
    const std::string bytes = file.bytes();
    const auto result = parse(bytes);
    ASSERT_FALSE(result);
    for (const std::string_view part : parts)
        EXPECT_NE(result.error().message.find(part), std::string::npos)
            << "'" << part << "' is not in: " << result.error().message;
}

GgufWriter small_file() {
    GgufWriter file;
    file.text("general.architecture", "deepseek2");
    file.u32("n", 7);
    file.f32("scale", 1.8f);
    file.boolean("yes", true);
    file.texts("list", {"a", "", "ccc"});
    file.i32s("kinds", {1, -3});
    file.tensor("a", {2, 3}, 0, std::string(24, '\1'));
    file.tensor("b", {2, 64}, 8, std::string(4 * 34, '\2'));
    return file;
}

TEST(Gguf, ReadsValuesAndPlacesOfBothVersions) {
    for (const std::uint32_t version : {2u, 3u}) {
        GgufWriter file = small_file();
        file.version = version;
        const std::string bytes = file.bytes();
        const auto header = parse(bytes);
        ASSERT_TRUE(header) << header.error().message;
        EXPECT_EQ(header->version, version);
        EXPECT_EQ(header->find("general.architecture")->text(), "deepseek2");
        EXPECT_EQ(header->find("n")->integer(), 7);
        EXPECT_EQ(header->find("n")->number(), 7.0);
        EXPECT_EQ(header->find("yes")->boolean(), true);
        EXPECT_EQ(header->find("list")->texts(), (std::vector<std::string_view>{"a", "", "ccc"}));
        EXPECT_EQ(header->find("kinds")->integers(), (std::vector<std::int64_t>{1, -3}));
        EXPECT_EQ(header->find("absent"), nullptr);
        EXPECT_FALSE(header->find("list")->integers());
        EXPECT_FALSE(header->find("n")->text());
        ASSERT_EQ(header->tensors.size(), 2u);
        EXPECT_EQ(header->tensors[1].shape, (std::vector<std::int64_t>{2, 64}));
        EXPECT_EQ(header->tensors[1].type, "Q8_0");
        EXPECT_EQ(bytes[header->tensors[1].begin], '\2');
        EXPECT_EQ(header->tensors[1].end, bytes.size());
        EXPECT_EQ(header->tensors[1].end - header->tensors[1].begin, 136u);
    }
}

// A writer's decimals come back, although they are stored as f32.
TEST(Gguf, NumbersAreTheDecimalsThatWereWritten) {
    GgufWriter file;
    for (const float number : {1.8f, 0.0707f, 1e-6f, 2.5f, 10000.0f, 0.1f})
        file.f32(fmt::format("k{}", file.keys), number);
    file.f32("infinite", std::numeric_limits<float>::infinity());
    const std::string bytes = file.bytes();
    const auto header = parse(bytes);
    ASSERT_TRUE(header) << header.error().message;
    const double expected[] = {1.8, 0.0707, 1e-6, 2.5, 10000.0, 0.1};
    for (std::size_t i = 0; i < 6; ++i)
        EXPECT_EQ(header->find(fmt::format("k{}", i))->number(), expected[i]);
    EXPECT_FALSE(header->find("infinite")->number());
}

TEST(Gguf, EveryTruncationIsRefused) {
    const std::string whole = small_file().bytes();
    for (std::size_t length = 0; length < whole.size(); ++length)
        EXPECT_FALSE(parse(whole.substr(0, length))) << length;
}

TEST(Gguf, DamagedFilesAreRefusedOrStayInBounds) {
    const std::string whole = small_file().bytes();
    std::mt19937 random(7);
    int read = 0;
    for (int round = 0; round < 20000; ++round) {
        std::string bytes = whole;
        for (int hits = 1 + static_cast<int>(random() % 3); hits > 0; --hits)
            bytes[random() % bytes.size()] = static_cast<char>(random());
        const auto header = parse(bytes);
        if (!header) {
            EXPECT_FALSE(header.error().message.empty());
            continue;
        }
        ++read;
        for (const GgufTensor& tensor : header->tensors)
            EXPECT_TRUE(tensor.begin <= tensor.end && tensor.end <= bytes.size());
        for (const auto& [key, value] : header->values) {
            EXPECT_FALSE(value.shown().empty());
            (void)value.texts();
            (void)value.integers();
        }
    }
    EXPECT_GT(read, 1000);  // of data and names
}

TEST(Gguf, CountsAreHeldAgainstTheFileBeforeTheyAreFollowed) {
    GgufWriter keys = small_file();
    keys.keys = ~0ull;
    expect_refused(keys, {"x.gguf"});
    GgufWriter tensors = small_file();
    tensors.tensor_count = 1ull << 60;
    expect_refused(tensors, {"x.gguf"});
    GgufWriter array;
    array.value("list", 9, raw_bytes(std::uint32_t{8}) + raw_bytes(std::uint64_t{1} << 61));
    expect_refused(array, {"'list'", "2305843009213693952 elements", "bytes left"});
    GgufWriter text;
    text.value("text", 8, raw_bytes(~std::uint64_t{0}));
    expect_refused(text, {"18446744073709551615 bytes"});
    GgufWriter nested;
    nested.value("list", 9, raw_bytes(std::uint32_t{9}) + raw_bytes(std::uint64_t{0}));
    expect_refused(nested, {"'list' is an array of arrays"});
    GgufWriter wide;
    wide.tensor("t", {1ull << 40, 1ull << 40}, 0, "");
    expect_refused(wide, {"'t' has more than 2^63 weights"});
}

TEST(Gguf, NamesWhatItDoesNotRead) {
    GgufWriter file = small_file();
    file.version = 1;
    expect_refused(file, {"GGUF version 1", "2 and 3"});
    file.version = 3u << 24;
    expect_refused(file, {"big-endian"});
    file = small_file();
    file.u32("n", 8);
    expect_refused(file, {"'n' is there twice"});
    file = small_file();
    file.tensor("a", {4}, 0, std::string(16, '\0'));
    expect_refused(file, {"'a' is there twice"});
    file = small_file();
    file.u32("two words", 8);
    expect_refused(file, {"'two words'"});
    file = small_file();
    file.value("odd", 77, "");
    expect_refused(file, {"'odd' has values of type 77"});
    file = GgufWriter();
    file.tensor("t", {33}, 8, std::string(34, '\0'));
    expect_refused(file, {"'t' has rows of 33", "Q8_0's 32"});
    file = GgufWriter();
    file.tensor("t", {32}, 99, std::string(34, '\0'));
    expect_refused(file, {"'t' is of type 99"});
    file = GgufWriter();
    file.tensor("t", {1, 1, 1, 1, 32}, 0, std::string(128, '\0'));
    expect_refused(file, {"'t' has 5 dimensions"});
    file = GgufWriter();
    file.u32("general.alignment", 24);
    expect_refused(file, {"general.alignment is 24", "power of two"});
}

TEST(Gguf, HolesOverlapsAndRestsAreRefusedWithBothNumbers) {
    GgufWriter file = small_file();
    file.tensor("c", {4}, 0, std::string(16, '\0'), 32);
    expect_refused(file, {"'c' begins at 32", "overlap"});
    file = small_file();
    file.tensor("c", {4}, 0, std::string(16, '\0'), 1024);
    expect_refused(file, {"'c' begins at 1024", "a hole"});
    file = small_file();
    file.data += std::string(64, '\0');
    expect_refused(file, {"tensors end at 168", "232 bytes"});
    file = small_file();
    file.u32("general.alignment", 64);  // but it is aligned to 32
    expect_refused(file, {"expected 64"});
    file = GgufWriter();
    file.alignment = 64;
    file.u32("general.alignment", 64);
    file.tensor("a", {4}, 0, std::string(16, '\0'));
    file.tensor("b", {4}, 0, std::string(16, '\0'));
    EXPECT_TRUE(parse(file.bytes()));
}

}  // namespace
}  // namespace espalier
