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

// Writes the model into a directory for temporary files, opens it, and removes the files: what is
// mapped stays readable as long as the checkpoint lives, and nothing is left behind. For a GPU the
// weights are made there, and on disk are only the small files.
Expected<runtime::ModelFiles> open_synthetic(const BenchedModel& wanted, DeviceKind device,
                                             const std::string& draft) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::SyntheticModel model,
                              named_model(wanted.synthetic, wanted.dtype));
    ESPALIER_ASSIGN_OR_RETURN(const ScratchDirectory directory, ScratchDirectory::make());
    if (device == DeviceKind::cuda) {
        ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint made,
                                  checkpoint::synthetic_on_gpu(model, directory.path()));
        return runtime::ModelFiles::of(std::move(made), wanted.synthetic, draft);
    }
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(0));
    ThreadPool pool(threads);
    ProgressBar bar("writing");
    ESPALIER_RETURN_IF_ERROR(checkpoint::write_synthetic(
        model, directory.path(), pool,
        [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); }));
    return runtime::ModelFiles::open(directory.path(), draft);
}

}  // namespace

void add_dtype_flag(CLI::App& command, std::string& dtype) {
    command.add_option("--dtype", dtype, "Type of the projections; default: the preset's")
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

void BenchedModel::add_to(CLI::App& command) {
    CLI::Option_group* which = command.add_option_group("model", "Model that is timed");
    which->add_option("model", name,
                      "Model directory, GGUF file or ORG/NAME in the local hub cache");
    CLI::Option* preset = which
                              ->add_option("--synthetic", synthetic,
                                           "A preset of make-model instead, made for this run "
                                           "alone")
                              ->check(preset_name());
    which->require_option(1);
    add_dtype_flag(command, dtype);
    command.get_option("--dtype")->needs(preset);
}

Expected<runtime::ModelFiles> BenchedModel::open(DeviceKind device,
                                                 const std::string& draft) const {
    return synthetic.empty() ? runtime::ModelFiles::open(name, draft)
                             : open_synthetic(*this, device, draft);
}

}  // namespace espalier::cli
