// SPDX-License-Identifier: Apache-2.0
// One safetensors file: a u64 header length, a JSON header, raw tensors. Every size and offset is
// checked as 64-bit against the file before a byte is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

// The reference implementation's limit; a larger header is refused before it is read.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Header alone, for files and for the fuzzer. `file_bytes` is the size of the whole file; `head`
// its first bytes (at least the header). `name` stands in error messages.
Expected<TensorEntries> parse_safetensors_header(std::span<const std::byte> head,
                                                 std::uint64_t file_bytes, std::string_view name);

Expected<TensorFile> open_safetensors(const std::filesystem::path& path);
Expected<TensorFile> read_safetensors(MappedFile file);

}  // namespace espalier::checkpoint
