// SPDX-License-Identifier: Apache-2.0
// One safetensors file: a u64 header length, a JSON header, raw tensors. Every size and offset is
// checked as 64-bit against the file before a byte is touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/mapped_file.hpp"

namespace espalier::checkpoint {

// dtypes a file may hold; only some of them are weights we can use.
enum class StoredType : std::uint8_t {
    f64,
    f32,
    f16,
    bf16,
    e4m3,
    e5m2,
    i64,
    i32,
    i16,
    i8,
    u64,
    u32,
    u16,
    u8,
    boolean,
    other,  // a name this build does not know: refused when the tensor is asked for, not before
};
// As the format spells it: "F32", "BF16", "F8_E4M3", …
std::string_view name_of(StoredType type);
// Bytes of one element; 0 for `other`.
std::uint64_t bytes_of(StoredType type);

struct TensorEntry {
    StoredType type = StoredType::f32;
    std::string other_type;  // the dtype as written, when type is `other`
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  // bytes from the start of the file
    std::uint64_t end = 0;

    std::string_view type_name() const {
        return type == StoredType::other ? std::string_view(other_type) : name_of(type);
    }
};

using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

// The reference implementation's limit; a larger header is refused before it is read.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Header alone, for files and for the fuzzer. `file_bytes` is the size of the whole file; `head`
// its first bytes (at least the header). `name` stands in error messages.
Expected<TensorEntries> parse_safetensors_header(std::span<const std::byte> head,
                                                 std::uint64_t file_bytes, std::string_view name);

class SafetensorsFile {
  public:
    static Expected<SafetensorsFile> open(const std::filesystem::path& path);
    static Expected<SafetensorsFile> read(MappedFile file);

    const TensorEntries& tensors() const { return tensors_; }
    std::span<const std::byte> bytes_of(const TensorEntry& entry) const;
    const MappedFile& file() const { return file_; }
    std::string name() const { return file_.path().filename().string(); }

  private:
    MappedFile file_;
    TensorEntries tensors_;
};

}  // namespace espalier::checkpoint
