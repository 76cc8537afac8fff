// SPDX-License-Identifier: Apache-2.0
#include "hub/partial_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace espalier::hub {
namespace {

constexpr char kWhole = 1;

}  // namespace

tl::unexpected<Error> PartialFile::failed(const char* what) const {
    return fail(ErrorKind::io, "{}: {}: {}", path_.string(), what, std::strerror(errno));
}

Expected<PartialFile> PartialFile::open(const std::filesystem::path& path, std::int64_t size,
                                        std::int64_t piece_bytes) {
    PartialFile made(path, ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), size,
                     piece_bytes);
    if (made.file_ < 0) return made.failed("cannot be written");
    struct stat now {};
    if (::fstat(made.file_, &now) != 0) return made.failed("cannot be read");
    if (now.st_size != size + made.pieces_ &&
        (::ftruncate(made.file_, 0) != 0 || ::ftruncate(made.file_, size + made.pieces_) != 0))
        return made.failed("cannot have its length");
    return made;
}

PartialFile::PartialFile(PartialFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      size_(other.size_),
      piece_bytes_(other.piece_bytes_),
      pieces_(other.pieces_) {}

PartialFile::~PartialFile() {
    if (file_ >= 0) ::close(file_);
}

std::int64_t PartialFile::end(std::int64_t piece) const {
    return std::min(size_, begin(piece) + piece_bytes_);
}

bool PartialFile::has(std::int64_t piece) const {
    char mark = 0;
    return ::pread(file_, &mark, 1, size_ + piece) == 1 && mark == kWhole;
}

std::int64_t PartialFile::bytes_there() const {
    std::int64_t bytes = 0;
    for (std::int64_t piece = 0; piece < pieces_; ++piece)
        if (has(piece)) bytes += end(piece) - begin(piece);
    return bytes;
}

Expected<void> PartialFile::write(std::int64_t offset, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return failed("cannot be written");
        bytes.remove_prefix(static_cast<std::size_t>(count));
        offset += count;
    }
    return {};
}

Expected<void> PartialFile::mark_whole(std::int64_t piece) {
    return write(size_ + piece, std::string_view(&kWhole, 1));
}

Expected<void> PartialFile::finish() {
    if (::ftruncate(file_, size_) != 0 || ::fsync(file_) != 0) return failed("cannot be finished");
    return {};
}

}  // namespace espalier::hub
