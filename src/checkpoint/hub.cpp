// SPDX-License-Identifier: Apache-2.0
// Where a model lies: a directory, or ORG/NAME[@REVISION] in the hub cache as huggingface_hub lays
// it out (models--ORG--NAME/refs/REVISION names a folder of snapshots/). Never the network.
#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/gguf.hpp"
#include "base/mapped_file.hpp"
#include "checkpoint/hub_cache.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/plain_name.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> environment_path(const char* variable) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return fs::path(value);
}

bool has_directory(const fs::path& path) {
    std::error_code error;
    return fs::is_directory(path, error);
}

Expected<fs::path> find_snapshot(const RepositoryName& wanted, std::string_view model) {
    ESPALIER_ASSIGN_OR_RETURN(const fs::path cache, hub_cache());
    const fs::path repository = cache / wanted.folder();
    const std::string advice =
        fmt::format("download it first (`espalier pull {}/{}`) or give a directory",
                    wanted.organisation, wanted.name);
    if (!has_directory(repository))
        return fail(ErrorKind::not_found,
                    "{}: no such directory, and not in the hub cache: looked for {}; {}", model,
                    repository.string(), advice);
    const std::string revision = wanted.revision.empty() ? "main" : wanted.revision;
    std::string commit = revision;
    std::error_code error;
    if (fs::is_regular_file(repository / "refs" / revision, error)) {
        ESPALIER_ASSIGN_OR_RETURN(commit, read_text_file(repository / "refs" / revision, 4096));
        commit.erase(commit.find_last_not_of(" \t\r\n") + 1);
        if (!is_plain_name(commit))
            return fail(ErrorKind::invalid, "{}: holds no commit name",
                        (repository / "refs" / revision).string());
    }
    const fs::path snapshot = repository / "snapshots" / commit;
    if (!has_directory(snapshot))
        return fail(ErrorKind::not_found,
                    "{}: revision '{}' is not in the hub cache: looked for {} and {}; {}", model,
                    revision, (repository / "refs" / revision).string(), snapshot.string(), advice);
    return snapshot;
}

}  // namespace

std::optional<RepositoryName> repository_name(std::string_view model) {
    const std::size_t at = model.find('@');
    const std::string_view repository = model.substr(0, at);
    const std::size_t slash = repository.find('/');
    if (slash == std::string_view::npos) return std::nullopt;
    RepositoryName result{std::string(repository.substr(0, slash)),
                          std::string(repository.substr(slash + 1)), ""};
    if (!is_plain_name(result.organisation) || !is_plain_name(result.name)) return std::nullopt;
    if (at == std::string_view::npos) return result;
    result.revision = model.substr(at + 1);
    // A revision may have parts (pr/1), each of them a plain name.
    std::string_view rest = result.revision;
    for (;;) {
        const std::size_t end = rest.find('/');
        if (!is_plain_name(rest.substr(0, end))) return std::nullopt;
        if (end == std::string_view::npos) return result;
        rest.remove_prefix(end + 1);
    }
}

Expected<fs::path> hub_cache() {
    for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
        if (const auto path = environment_path(variable)) return *path;
    if (const auto home = environment_path("HF_HOME")) return *home / "hub";
    if (const auto cache = environment_path("XDG_CACHE_HOME"))
        return *cache / "huggingface" / "hub";
    if (const auto home = environment_path("HOME")) return *home / ".cache" / "huggingface" / "hub";
    return fail(ErrorKind::not_found,
                "no hub cache: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set");
}

Expected<fs::path> resolve_model_path(std::string_view model) {
    const fs::path path(model);
    if (has_directory(path)) return path;
    std::error_code error;
    if (is_gguf_name(model) && fs::is_regular_file(path, error)) return path;
    if (fs::exists(path, error))
        return fail(ErrorKind::invalid,
                    "{}: a file; a model is a directory with config.json and *.safetensors, or a "
                    ".gguf file",
                    model);
    if (const fs::path target = fs::read_symlink(path, error); !error)
        return fail(ErrorKind::not_found, "{}: a link to {}, which is not there", model,
                    target.string());
    if (const auto wanted = repository_name(model)) return find_snapshot(*wanted, model);
    return fail(ErrorKind::not_found,
                "'{}': no such directory, and not of the form ORG/NAME or ORG/NAME@REVISION",
                model);
}

}  // namespace espalier::checkpoint
