// SPDX-License-Identifier: Apache-2.0
// A read-only memory-mapped file. Nothing in its bytes is trusted; readers check every offset
// against size().
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/error.hpp"

namespace espalier {

class MappedFile {
  public:
    static Expected<MappedFile> open(const std::filesystem::path& path);

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
};

// The whole of a small text file, refused above limit_bytes.
Expected<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit_bytes);

}  // namespace espalier
