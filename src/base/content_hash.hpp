// SPDX-License-Identifier: Apache-2.0
// A hash of bytes that finds mistakes, not forgers: eight bytes at a time, multiply, rotate,
// multiply, and a final avalanche (as in xxHash). The same on every machine of one byte order.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace espalier {

class ContentHash {
  public:
    void add(std::span<const std::byte> bytes) {
        word(bytes.size());
        while (bytes.size() >= 8) {
            std::uint64_t value = 0;
            std::memcpy(&value, bytes.data(), 8);
            word(value);
            bytes = bytes.subspan(8);
        }
        std::uint64_t rest = 0;
        if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
        word(rest);
    }
    void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
    void word(std::uint64_t value) {
        state_ = std::rotl(state_ ^ (value * 0x9e3779b97f4a7c15u), 29) * 0xbf58476d1ce4e5b9u + 1;
    }
    // 16 hex digits.
    std::string text() const {
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 31)) * 0x94d049bb133111ebu;
        return fmt::format("{:016x}", mixed ^ (mixed >> 29));
    }

  private:
    std::uint64_t state_ = 0x243f6a8885a308d3u;
};

}  // namespace espalier
