// SPDX-License-Identifier: Apache-2.0
// Flat buffers between processes of one build: numbers and arrays one behind the other, each array
// behind its count. A reader trusts no count: what is not there reads as zero and empty, and
// finish() says that something was missing or left over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.hpp"

namespace espalier {

// Appends to a buffer whose memory is used again.
class FlatWriter {
  public:
    explicit FlatWriter(std::vector<std::byte>& buffer) : buffer_(buffer) { buffer_.clear(); }

    template <typename T>
    void number(T value) {
        static_assert(std::is_arithmetic_v<T>);
        append(&value, sizeof(value));
    }
    template <typename T>
    void array(std::span<const T> values) {
        static_assert(std::is_trivially_copyable_v<T>);
        number(static_cast<std::uint64_t>(values.size()));
        append(values.data(), values.size_bytes());
    }
    void text(std::string_view value) { array(std::span<const char>(value)); }

  private:
    void append(const void* data, std::size_t bytes) {
        if (bytes == 0) return;
        const std::size_t at = buffer_.size();
        buffer_.resize(at + bytes);
        std::memcpy(buffer_.data() + at, data, bytes);
    }

    std::vector<std::byte>& buffer_;
};

class FlatReader {
  public:
    explicit FlatReader(std::span<const std::byte> bytes) : left_(bytes) {}

    template <typename T>
    T number() {
        static_assert(std::is_arithmetic_v<T>);
        T value{};
        if (const std::byte* from = take(1, sizeof(T))) std::memcpy(&value, from, sizeof(T));
        return value;
    }
    bool flag() { return number<std::uint8_t>() != 0; }
    // Bytes of an array of `element` bytes each, where they lie; empty where fewer are there.
    std::span<const std::byte> bytes_of(std::size_t element) {
        const auto count = number<std::uint64_t>();
        const std::byte* const from = take(count, element);
        if (from == nullptr) return {};
        return {from, static_cast<std::size_t>(count) * element};
    }
    template <typename T>
    void array(std::vector<T>& values) {
        static_assert(std::is_trivially_copyable_v<T>);
        const std::span<const std::byte> bytes = bytes_of(sizeof(T));
        values.resize(bytes.size() / sizeof(T));
        if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    std::string text() {
        const std::span<const std::byte> bytes = bytes_of(1);
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

    // All was there, and nothing is left.
    Expected<void> finish(std::string_view what) const {
        if (broken_) return fail(ErrorKind::invalid, "{}: it ends early", what);
        if (!left_.empty())
            return fail(ErrorKind::invalid, "{}: {} bytes behind its end", what, left_.size());
        return {};
    }

  private:
    const std::byte* take(std::uint64_t count, std::size_t element) {
        if (broken_ || count > left_.size() / element) {
            broken_ = true;
            return nullptr;
        }
        const std::byte* const from = left_.data();
        left_ = left_.subspan(static_cast<std::size_t>(count) * element);
        return from;
    }

    std::span<const std::byte> left_;
    bool broken_ = false;
};

}  // namespace espalier
