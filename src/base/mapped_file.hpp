// SPDX-License-Identifier: Apache-2.0
// A read-only memory-mapped file, or memory that stands for one. Nothing in its bytes is trusted;
// readers check every offset against size(). Bytes that are lost while it is mapped read as zeros
// (mapping_guard.hpp).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.hpp"
#include "base/mapping_guard.hpp"

namespace espalier {

class MappedFile {
  public:
    // Regular files only. not_found: nothing of that name; a link that points nowhere is io.
    static Expected<MappedFile> open(const std::filesystem::path& path);
    // Memory as if it were the file of that name; owner: what keeps it.
    static MappedFile over(std::filesystem::path path, std::span<const std::byte> bytes,
                           std::shared_ptr<void> owner);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    std::size_t size() const { return size_; }
    const std::filesystem::path& path() const { return path_; }

    // Tells the system that a range is read soon, or that its pages may go (it stays readable).
    void will_need(std::span<const std::byte> range) const;
    void done_with(std::span<const std::byte> range) const;

  private:
    std::filesystem::path path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    MappingGuard guard_;
    std::shared_ptr<void> owner_;  // of memory that is not mapped here
};

// The whole of a small text file, refused above limit_bytes.
Expected<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit_bytes);
// Nothing if there is no such file; an empty file is an empty text.
Expected<std::optional<std::string>> read_optional_text_file(const std::filesystem::path& path,
                                                             std::size_t limit_bytes);

}  // namespace espalier
