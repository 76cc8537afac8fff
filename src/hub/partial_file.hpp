// SPDX-License-Identifier: Apache-2.0
// A file that comes in pieces, in any order, over several runs of the program. Behind its bytes
// stands a byte for each piece that is whole; finish() cuts them off. Its name is not one that
// other tools take for a download of their own, which they would go on with from its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/error.hpp"

namespace espalier::hub {

class PartialFile {
  public:
    // Goes on with what lies there, if that is of this size and cut into such pieces.
    static Expected<PartialFile> open(const std::filesystem::path& path, std::int64_t size,
                                      std::int64_t piece_bytes);
    PartialFile(PartialFile&& other) noexcept;
    PartialFile(const PartialFile&) = delete;
    ~PartialFile();

    std::int64_t pieces() const { return pieces_; }
    std::int64_t begin(std::int64_t piece) const { return piece * piece_bytes_; }
    std::int64_t end(std::int64_t piece) const;
    bool has(std::int64_t piece) const;
    std::int64_t bytes_there() const;
    // Any thread, each its own piece.
    Expected<void> write(std::int64_t offset, std::string_view bytes);
    Expected<void> mark_whole(std::int64_t piece);
    // All pieces are there: the file has its own length from here on.
    Expected<void> finish();

  private:
    PartialFile(std::filesystem::path path, int file, std::int64_t size, std::int64_t piece_bytes)
        : path_(std::move(path)),
          file_(file),
          size_(size),
          piece_bytes_(piece_bytes),
          pieces_((size + piece_bytes - 1) / piece_bytes) {}
    tl::unexpected<Error> failed(const char* what) const;

    std::filesystem::path path_;
    int file_;
    std::int64_t size_, piece_bytes_, pieces_;
};

}  // namespace espalier::hub
