// SPDX-License-Identifier: Apache-2.0
#include "trace/sink.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace espalier::trace {
namespace {

class FileSink final : public Sink {
  public:
    FileSink(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
    ~FileSink() override { ::close(descriptor_); }
    FileSink(const FileSink&) = delete;
    FileSink& operator=(const FileSink&) = delete;

    Expected<void> write(std::string_view bytes) override {
        while (!bytes.empty()) {
            const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
            if (count < 0 && errno == EINTR) continue;
            if (count < 0)
                return fail(ErrorKind::io, "{}: cannot be written: {}", path_,
                            std::strerror(errno));
            bytes.remove_prefix(static_cast<std::size_t>(count));
        }
        return {};
    }

  private:
    int descriptor_;
    std::string path_;
};

}  // namespace

Expected<std::unique_ptr<Sink>> open_file(const std::string& path) {
    // Prompts are private: only the owner may read the file.
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return fail(ErrorKind::io, "{}: cannot be written: {}", path, std::strerror(errno));
    return std::make_unique<FileSink>(descriptor, path);
}

}  // namespace espalier::trace
