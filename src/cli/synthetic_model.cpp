// SPDX-License-Identifier: Apache-2.0
#include "cli/synthetic_model.hpp"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "cli/terminal.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

CLI::Validator one_of(const std::vector<std::string_view>& names) {
    return CLI::IsMember(std::vector<std::string>(names.begin(), names.end()));
}

// Removed with all it holds, also where writing or opening fails.
class ScratchDirectory {
  public:
    static Expected<ScratchDirectory> make() {
        std::error_code error;
        const fs::path base = fs::temp_directory_path(error);
        if (error)
            return fail(ErrorKind::io, "no directory for temporary files: {}", error.message());
        std::string path = (base / "espalier-XXXXXX").string();
        if (mkdtemp(path.data()) == nullptr)
            return fail(ErrorKind::io, "{}: cannot make it: {}", path, std::strerror(errno));
        return ScratchDirectory(std::move(path));
    }
    ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::move(other.path_)) {
        other.path_.clear();
    }
    ScratchDirectory& operator=(ScratchDirectory&&) = delete;
    ~ScratchDirectory() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    const std::string& path() const { return path_; }

  private:
    explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

}  // namespace

void add_dtype_flag(CLI::App& command, std::string& dtype) {
    command.add_option("--dtype", dtype, "Of its projections; the preset's own if not given")
        ->check(one_of(checkpoint::synthetic_dtype_names()));
}

CLI::Validator preset_name() { return one_of(checkpoint::synthetic_preset_names()); }

Expected<checkpoint::SyntheticModel> named_model(const std::string& preset,
                                                 const std::string& dtype) {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::SyntheticModel model,
                              checkpoint::synthetic_preset(preset));
    if (!dtype.empty()) ESPALIER_RETURN_IF_ERROR(checkpoint::store_as(dtype, model));
    return model;
}

Expected<checkpoint::Checkpoint> open_synthetic(const checkpoint::SyntheticModel& model,
                                                DeviceKind device) {
    ESPALIER_ASSIGN_OR_RETURN(const ScratchDirectory directory, ScratchDirectory::make());
    if (device == DeviceKind::cuda) return checkpoint::synthetic_on_gpu(model, directory.path());
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(0));
    ThreadPool pool(threads);
    ProgressBar bar("writing");
    ESPALIER_RETURN_IF_ERROR(checkpoint::write_synthetic(
        model, directory.path(), pool,
        [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); }));
    return checkpoint::Checkpoint::open(directory.path());
}

}  // namespace espalier::cli
