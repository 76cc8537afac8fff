// SPDX-License-Identifier: Apache-2.0
// A mapped file that holds tensors, whatever its format: which tensors lie where in it. A format's
// own reader (safetensors.hpp, gguf_file.hpp) makes one; those who read weights see no more.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/block_format.hpp"
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
    blocks,  // TensorEntry::block
    other,   // a name this build does not know: refused when the tensor is asked for, not before
};
// Name in the format's spelling: "F32", "BF16", "F8_E4M3", …
std::string_view name_of(StoredType type);
// Bytes of one element; 0 for `blocks` and `other`.
std::uint64_t bytes_of(StoredType type);

struct TensorEntry {
    StoredType type = StoredType::f32;
    BlockCode block = BlockCode::none;  // when type is `blocks`
    std::string other_type;             // the dtype as written, when type is `other`
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  // bytes from the start of the file
    std::uint64_t end = 0;

    std::string_view type_name() const {
        if (type == StoredType::blocks) return facts_of(block).name;
        return type == StoredType::other ? std::string_view(other_type) : name_of(type);
    }
};

using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

class TensorFile {
  public:
    TensorFile() = default;
    TensorFile(MappedFile file, TensorEntries tensors)
        : file_(std::move(file)), tensors_(std::move(tensors)) {}

    const TensorEntries& tensors() const { return tensors_; }
    std::span<const std::byte> bytes_of(const TensorEntry& entry) const;
    const MappedFile& file() const { return file_; }
    std::string name() const { return file_.path().filename().string(); }

  private:
    MappedFile file_;
    TensorEntries tensors_;
};

}  // namespace espalier::checkpoint
