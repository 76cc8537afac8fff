// SPDX-License-Identifier: Apache-2.0
#include "model/packed_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "base/content_hash.hpp"
#include "base/mapping_guard.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".packed.espalier";
constexpr const char* kPart = ".part";

// The lock of a directory, held by one process at a time and gone with it. Where a disk knows no
// locks two processes pack at once, each to a file of its own.
class DirectoryLock {
  public:
    DirectoryLock(const fs::path& directory, const PackedCache::Use& use)
        : descriptor_(::open((directory / "lock").c_str(),
                             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
        if (descriptor_ < 0 || ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
        if (errno == EWOULDBLOCK && use.say)
            use.say(fmt::format("waiting for another process that packs weights into {}",
                                directory.string()));
        while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
        }
    }
    ~DirectoryLock() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    DirectoryLock(const DirectoryLock&) = delete;
    DirectoryLock& operator=(const DirectoryLock&) = delete;

  private:
    int descriptor_;
};

// Pages of the checkpoint's files leave the system's cache, so that they do not take the memory of
// those that were just written.
void let_go(const checkpoint::Checkpoint& checkpoint) {
    for (const auto& file : checkpoint.files()) {
        file->file().done_with(file->file().bytes());
        const int descriptor =
            ::open(file->file().path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) continue;
        (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
        ::close(descriptor);
    }
}

// Name of a checkpoint's files as they lie there: the fingerprint misses a few changed numbers.
std::string source_of(const checkpoint::Checkpoint& checkpoint) {
    ContentHash hash;
    hash.add(checkpoint::weights_fingerprint(checkpoint));
    for (const auto& file : checkpoint.files()) {
        std::error_code error;
        const auto time = fs::last_write_time(file->file().path(), error);
        hash.word(file->file().size());
        hash.word(error ? 0 : static_cast<std::uint64_t>(time.time_since_epoch().count()));
    }
    return hash.text();
}

}  // namespace

PackedPlace PackedCache::place_of(const checkpoint::Checkpoint& checkpoint) const {
    PackedPlace place{{},
                      {std::string(name_of(linalg::WeightLayout::panels)), linalg::kPanelsVersion,
                       source_of(checkpoint)},
                      kSpare};
    place.file = directory_ / (place.identity.source + kSuffix);
    return place;
}

fs::path PackedCache::file_of(const checkpoint::Checkpoint& checkpoint) const {
    return place_of(checkpoint).file;
}

Expected<std::shared_ptr<PackedWeights>> PackedCache::open(const PackedPlace& place,
                                                           CpuDevice& device,
                                                           const Use& use) const {
    ESPALIER_ASSIGN_OR_RETURN(const auto packed, PackedWeights::open(place));
    ESPALIER_RETURN_IF_ERROR(packed->check(device.pool(), use.mmap_experts));
    std::error_code ignored;
    fs::last_write_time(place.file, fs::file_time_type::clock::now(), ignored);
    return packed;
}

Expected<std::shared_ptr<PackedWeights>> PackedCache::take(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint, CpuDevice& device,
    const Use& use) const {
    const PackedPlace place = place_of(*checkpoint);
    auto packed = open(place, device, use);
    if (packed) return packed;
    std::error_code error;
    fs::create_directories(directory_, error);
    if (error) return fail(ErrorKind::io, "{}: {}", directory_.string(), error.message());
    const DirectoryLock lock(directory_, use);
    packed = open(place, device, use);  // another process may have made it meanwhile
    if (packed) return packed;
    if (packed.error().kind != ErrorKind::not_found && use.say)
        use.say(packed.error().message + "; packed again");
    ESPALIER_RETURN_IF_ERROR(pack(place, std::move(checkpoint), device, use));
    return PackedWeights::open(place);
}

Expected<void> PackedCache::pack(const PackedPlace& place,
                                 std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                 CpuDevice& device, const Use& use) const {
    const auto start = std::chrono::steady_clock::now();
    make_room(place.file);
    ESPALIER_RETURN_IF_ERROR(write_packed_weights(place, checkpoint, device, use.progress));
    let_go(*checkpoint);
    if (!use.say) return {};
    std::error_code error;
    use.say(fmt::format(
        "packed the weights once, in {:.1f} s: {} ({:.2f} GB), which later starts map",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
        place.file.string(), static_cast<double>(fs::file_size(place.file, error)) / 1e9));
    return {};
}

// Parts are left by processes that were killed: who writes one has the lock.
void PackedCache::make_room(const fs::path& file) const {
    std::vector<std::pair<fs::file_time_type, fs::path>> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory_, error)) {
        const std::string name = entry.path().filename().string();
        if (name.ends_with(kPart) && name.find(kSuffix) != std::string::npos)
            fs::remove(entry.path(), error);
        if (!name.ends_with(kSuffix) || entry.path() == file) continue;
        const auto time = entry.last_write_time(error);
        if (!error) files.emplace_back(time, entry.path());
    }
    std::ranges::sort(files);
    for (std::size_t i = 0; i + kMostFiles <= files.size(); ++i) fs::remove(files[i].second, error);
}

}  // namespace espalier::model
