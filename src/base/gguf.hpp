// SPDX-License-Identifier: Apache-2.0
// GGUF files: metadata and a list of tensors before their data. Every count, length and offset is
// checked as 64-bit against the file before it is followed, and nothing is allocated in proportion
// to a number that the file merely claims. What the keys mean: checkpoint/gguf_config.cpp for a
// model, text/gguf_loader.cpp for a tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace espalier {

// In the order of the format's ids.
enum class GgufType : std::uint8_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    text,
    array,
    u64,
    i64,
    f64,
};

// A value that lies in the file. Each of the readers gives nothing where the value is of another
// kind; integers may be of any width.
struct GgufValue {
    GgufType type = GgufType::u8;
    GgufType element = GgufType::u8;   // of an array; no arrays
    std::uint64_t count = 1;           // of an array's elements
    std::span<const std::byte> bytes;  // of the elements

    std::optional<std::int64_t> integer() const;  // within 64 signed bits
    // An f32 is read as the shortest decimal that rounds to it, which is what its writer had:
    // 1.8 of a config.json stays 1.8.
    std::optional<double> number() const;  // a finite one
    std::optional<bool> boolean() const;
    std::optional<std::string_view> text() const;
    std::optional<std::vector<std::string_view>> texts() const;
    std::optional<std::vector<std::int64_t>> integers() const;
    // For messages: printable, cut short.
    std::string shown() const;
};

struct GgufTensor {
    std::string name;                 // printable ASCII
    std::string_view type;            // "Q4_K"; the format's names
    std::vector<std::int64_t> shape;  // outermost first, as everywhere here; the file's is reversed
    std::uint64_t begin = 0;          // bytes from the start of the file
    std::uint64_t end = 0;
};

struct GgufHeader {
    std::uint32_t version = 0;
    std::map<std::string, GgufValue, std::less<>> values;  // keys are printable ASCII
    std::vector<GgufTensor> tensors;                       // by place in the file
    std::uint64_t data_begin = 0;

    // Null: no such key.
    const GgufValue* find(std::string_view key) const {
        const auto found = values.find(key);
        return found == values.end() ? nullptr : &found->second;
    }
};

bool is_gguf_name(std::string_view path);  // ends with ".gguf"

// bytes: the whole file, which the values view. `name` stands in error messages.
Expected<GgufHeader> parse_gguf(std::span<const std::byte> bytes, std::string_view name);

}  // namespace espalier
