// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.hpp"

namespace espalier {
namespace {

void advise(std::span<const std::byte> range, int advice) {
    if (range.empty()) return;
    constexpr std::uintptr_t kPage = 4096;
    const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
    // will_need rounds outwards, done_with inwards: a page shared with a neighbour must not go.
    const bool outwards = advice == MADV_WILLNEED;
    const std::uintptr_t first = (outwards ? begin : begin + kPage - 1) / kPage * kPage;
    const std::uintptr_t last = (begin + range.size() + (outwards ? kPage - 1 : 0)) / kPage * kPage;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

tl::unexpected<Error> not_opened(const std::filesystem::path& path, int error) {
    if (error == ENXIO) return fail(ErrorKind::io, "{}: not a regular file", path.string());
    if (error != ENOENT) return fail(ErrorKind::io, "{}: {}", path.string(), std::strerror(error));
    // A link that points nowhere, as an interrupted download leaves it, is not an absent file:
    // callers do without an absent one.
    std::error_code no_link;
    const std::filesystem::path target = std::filesystem::read_symlink(path, no_link);
    if (!no_link)
        return fail(ErrorKind::io, "{}: a link to {}, which is not there", path.string(),
                    target.string());
    return fail(ErrorKind::not_found, "{}: {}", path.string(), std::strerror(error));
}

}  // namespace

Expected<MappedFile> MappedFile::open(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a FIFO without it waits for a writer, perhaps for ever.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return not_opened(path, errno);
    struct stat status {};
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor);
        return fail(ErrorKind::io, "{}: not a regular file", path.string());
    }
    MappedFile file;
    file.path_ = path;
    file.size_ = static_cast<std::size_t>(status.st_size);
    if (file.size_ > 0) {
        void* data = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) {
            const int error = errno;
            ::close(descriptor);
            return fail(ErrorKind::io, "{}: cannot map {} bytes: {}", path.string(),
                        std::exchange(file.size_, 0), std::strerror(error));
        }
        file.data_ = static_cast<const std::byte*>(data);
        file.guard_ = MappingGuard(file.bytes(), path);
    }
    ::close(descriptor);
    return file;
}

MappedFile MappedFile::over(std::filesystem::path path, std::span<const std::byte> bytes,
                            std::shared_ptr<void> owner) {
    CHECK(owner != nullptr, "{}: memory without an owner", path.string());
    MappedFile file;
    file.path_ = std::move(path);
    file.data_ = bytes.data();
    file.size_ = bytes.size();
    file.owner_ = std::move(owner);
    return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::move(other.guard_)),
      owner_(std::move(other.owner_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(guard_, other.guard_);
    std::swap(owner_, other.owner_);
    return *this;
}

MappedFile::~MappedFile() {
    guard_ = {};
    if (data_ != nullptr && owner_ == nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::will_need(std::span<const std::byte> range) const {
    if (owner_ == nullptr) advise(range, MADV_WILLNEED);
}
void MappedFile::done_with(std::span<const std::byte> range) const {
    if (owner_ == nullptr) advise(range, MADV_DONTNEED);
}

Expected<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit_bytes) {
    ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    if (file.size() > limit_bytes)
        return fail(ErrorKind::exhausted, "{}: {} bytes, more than the limit of {}", path.string(),
                    file.size(), limit_bytes);
    std::string text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
    ESPALIER_RETURN_IF_ERROR(check_mapped_files());
    return text;
}

Expected<std::optional<std::string>> read_optional_text_file(const std::filesystem::path& path,
                                                             std::size_t limit_bytes) {
    auto text = read_text_file(path, limit_bytes);
    if (text) return std::optional(std::move(*text));
    if (text.error().kind == ErrorKind::not_found) return std::optional<std::string>();
    return tl::unexpected<Error>(std::move(text.error()));
}

}  // namespace espalier
