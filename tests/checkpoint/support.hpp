// SPDX-License-Identifier: Apache-2.0
// What the checkpoint tests share: files, safetensors bytes, message checks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "support/temporary_directory.hpp"

namespace espalier::checkpoint {

inline void write_file(const std::filesystem::path& path, std::string_view text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string u64_bytes(std::uint64_t value) {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((value >> (8 * i)) & 0xff);
    return bytes;
}

// A file with this header and data_bytes of data.
inline std::string safetensors(std::string_view header, std::size_t data_bytes) {
    return u64_bytes(header.size()) + std::string(header) + std::string(data_bytes, '\x01');
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

// An error whose message holds every part.
template <typename Result>
void expect_error(const Result& result, std::initializer_list<std::string_view> parts) {
    ASSERT_FALSE(result);
    for (const std::string_view part : parts)
        EXPECT_NE(result.error().message.find(part), std::string::npos)
            << "'" << part << "' is not in: " << result.error().message;
}

}  // namespace espalier::checkpoint
