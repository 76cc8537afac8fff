// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.hpp"

#include "checkpoint/support.hpp"

namespace espalier::checkpoint {
namespace {

Expected<TensorEntries> parse(std::string_view file) {
    return parse_safetensors_header(as_bytes(file), file.size(), "x.safetensors");
}

Expected<TensorEntries> parse_header(std::string_view header, std::size_t data_bytes) {
    return parse(safetensors(header, data_bytes));
}

constexpr std::string_view kSmall =
    R"({"__metadata__":{"format":"pt"},)"
    R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[24,29]},)"
    R"("c":{"dtype":"BF16","shape":[],"data_offsets":[29,31]},)"
    R"("none":{"dtype":"I64","shape":[0,9],"data_offsets":[31,31]}} )";

TEST(Safetensors, ReadsEntriesWithOffsetsFromTheStartOfTheFile) {
    const auto entries = parse_header(kSmall, 31);
    ASSERT_TRUE(entries) << entries.error().message;
    ASSERT_EQ(entries->size(), 4u);
    const TensorEntry& b = entries->find("b")->second;
    EXPECT_EQ(b.type, StoredType::e4m3);
    EXPECT_EQ(b.shape, std::vector<std::int64_t>{5});
    EXPECT_EQ(b.begin, 8 + kSmall.size() + 24);
    EXPECT_EQ(b.end, 8 + kSmall.size() + 29);
    EXPECT_TRUE(entries->find("c")->second.shape.empty());
}

TEST(Safetensors, EveryTruncationIsRefused) {
    const std::string file = safetensors(kSmall, 31);
    for (std::size_t bytes = 0; bytes < file.size(); ++bytes)
        EXPECT_FALSE(parse(std::string_view(file).substr(0, bytes)))
            << bytes << " of " << file.size();
}

TEST(Safetensors, EveryFlippedBitIsRefusedOrStaysInBounds) {
    const std::string file = safetensors(kSmall, 31);
    for (std::size_t at = 0; at < 8 + kSmall.size(); ++at)
        for (int bit = 0; bit < 8; ++bit) {
            std::string hostile = file;
            hostile[at] = static_cast<char>(hostile[at] ^ (1 << bit));
            const auto entries = parse(hostile);
            if (!entries) continue;
            for (const auto& [name, entry] : *entries) {
                EXPECT_LE(entry.begin, entry.end);
                EXPECT_LE(entry.end, file.size());
            }
        }
}

TEST(Safetensors, HeaderLengthIsHeldAgainstFileAndLimit) {
    expect_error(parse(u64_bytes(1ull << 62) + "{}"),
                 {"x.safetensors", "4611686018427387904", "100000000"});
    expect_error(parse(u64_bytes(~0ull) + "{}"), {"18446744073709551615"});
    expect_error(parse(u64_bytes(3) + "{}"), {"header ends at 11", "10 bytes"});
    expect_error(parse(u64_bytes(0)), {"not valid JSON"});
    expect_error(parse(""), {"0 bytes", "at least 8"});
    EXPECT_TRUE(parse(u64_bytes(2) + "{}"));
    // More bytes at hand than the file is said to have.
    expect_error(parse_safetensors_header(as_bytes(u64_bytes(4) + "{}  "), 10, "x.safetensors"),
                 {"header ends at 12", "10 bytes"});
}

TEST(Safetensors, OverlapsHolesAndRestsAreRefusedWithBothNumbers) {
    // Data begins at 8 + the header's length.
    const std::string overlap =
        R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})";
    const std::size_t data = 8 + overlap.size();
    expect_error(parse_header(overlap, 12),
                 {"tensor 'b' begins at " + std::to_string(data + 4),
                  "'a' before it ends at " + std::to_string(data + 8), "overlap"});
    expect_error(parse_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})", 12),
                 {"'a'", "hole"});
    expect_error(parse_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 9),
                 {"tensors end at", "file has"});
    expect_error(parse_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 7),
                 {"'a'", "ends at 8", "7 bytes"});
    expect_error(parse_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", 8),
                 {"'a'", "begins at 8", "end at 0"});
    // Same bytes under two names.
    expect_error(
        parse_header(
            R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
            8),
        {"overlap"});
}

TEST(Safetensors, SizesAreCountedIn64BitsWithoutWrapping) {
    expect_error(parse_header(R"({"a":{"dtype":"F32","shape":[7,4],"data_offsets":[0,128]}})", 128),
                 {"'a'", "128 bytes", "[7, 4]", "112"});
    // 2^62 · 4 = 2^64 wraps to 0.
    expect_error(
        parse_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})",
                     0),
        {"'a'", "[4611686018427387904]", "2^64"});
    expect_error(
        parse_header(
            R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,1],"data_offsets":[0,0]}})", 0),
        {"2^64"});
    expect_error(
        parse_header(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}})",
                     0),
        {"dimension 18446744073709551615", "9223372036854775807"});
    expect_error(
        parse_header(
            R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615]}})",
            0),
        {"ends at 18446744073709551615"});
    expect_error(
        parse_header(R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}})",
                     0),
        {"'a'", "dimension"});
}

TEST(Safetensors, WrongKindsOfValuesNameTheTensor) {
    for (const char* entry : {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":["1"],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":[true],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":[null],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":1,"data_offsets":[0,0]})",
                              R"({"dtype":5,"shape":[],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":[0],"data_offsets":[-1,0]})",
                              R"({"dtype":"F32","shape":[0],"data_offsets":[0]})",
                              R"({"dtype":"F32","shape":[0],"data_offsets":[0,0,0]})",
                              R"({"dtype":"F32","shape":[0],"data_offsets":{}})",
                              R"({"dtype":"F32","shape":[0]})",
                              R"({"dtype":"F32","data_offsets":[0,0]})",
                              R"({"shape":[0],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]})",
                              R"({"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1})",
                              "5",
                              "null",
                              "\"F32\"",
                              "[]",
                              "true"})
        expect_error(parse_header(std::string(R"({"bad":)") + entry + "}", 0),
                     {"x.safetensors", "'bad'"});
    for (const char* header : {"[]", "5", "null", "\"a\"", "", "{", "{}{}", "{\"a\":}", "\xff"})
        EXPECT_FALSE(parse_header(header, 0)) << header;
}

TEST(Safetensors, RepeatedNamesAreRefused) {
    expect_error(
        parse_header(
            R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
            0),
        {"'a' is listed twice"});
    expect_error(parse_header(R"({"__metadata__":{},"__metadata__":{}})", 0), {"listed twice"});
}

// The reference's rule: a map of strings, or null.
TEST(Safetensors, MetadataIsAMapOfStrings) {
    EXPECT_TRUE(parse_header(R"({"__metadata__":{"format":"pt","shape":"x","dtype":""}})", 0));
    EXPECT_TRUE(parse_header(R"({"__metadata__":null})", 0));
    EXPECT_TRUE(parse_header(R"({"__metadata__":{}})", 0));
    for (const char* value : {"5", "-1", "0.5", "true", "\"text\"", "[]", "[\"text\"]",
                              R"({"a":5})", R"({"a":-5})", R"({"a":0.5})", R"({"a":null})",
                              R"({"a":false})", R"({"a":{}})", R"({"a":[]})", R"({"a":["b"]})"}) {
        SCOPED_TRACE(value);
        expect_error(parse_header(R"({"__metadata__":)" + std::string(value) + "}", 0),
                     {"__metadata__ is no map of strings"});
    }
    const std::string deep =
        R"({"__metadata__":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
    expect_error(parse_header(deep, 0), {"__metadata__ is no map of strings"});
}

TEST(Safetensors, UnknownTypesAreKeptUntilUsed) {
    const auto entries =
        parse_header(R"({"a":{"dtype":"F4_NEW","shape":[3],"data_offsets":[0,2]}})", 2);
    ASSERT_TRUE(entries) << entries.error().message;
    EXPECT_EQ(entries->begin()->second.type, StoredType::other);
    EXPECT_EQ(entries->begin()->second.type_name(), "F4_NEW");
}

TEST(Safetensors, OpensAFileAndHandsOutItsBytes) {
    const TemporaryDirectory directory;
    write_file(directory.path() / "model.safetensors", safetensors(kSmall, 31));
    const auto file = open_safetensors(directory.path() / "model.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    const auto bytes = file->bytes_of(file->tensors().find("b")->second);
    EXPECT_EQ(bytes.size(), 5u);
    EXPECT_EQ(bytes[0], std::byte{1});
    expect_error(open_safetensors(directory.path() / "absent.safetensors"), {"absent.safetensors"});
}

}  // namespace
}  // namespace espalier::checkpoint
