// SPDX-License-Identifier: Apache-2.0
#include "hub/pull.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/gguf.hpp"
#include "base/json.hpp"
#include "base/mapped_file.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/plain_name.hpp"
#include "hub/download.hpp"
#include "hub/fetcher.hpp"
#include "hub/needed_files.hpp"
#include "tls/digest.hpp"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;
using checkpoint::RepositoryName;

constexpr std::size_t kMaxListBytes = 64 << 20;
constexpr std::size_t kMaxIndexBytes = 256 << 20;

// Held while a blob is written: processes that want the same one wait for it. The place and the
// kind of lock are huggingface_hub's.
class BlobLock {
  public:
    static Expected<BlobLock> take(const fs::path& path,
                                   const std::function<void(const std::string&)>& say) {
        std::error_code failure;
        fs::create_directories(path.parent_path(), failure);
        BlobLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
        const auto wrong = [&] {
            return fail(ErrorKind::io, "{}: {}", path.string(), std::strerror(errno));
        };
        if (lock.file_ < 0) return wrong();
        if (::flock(lock.file_, LOCK_EX | LOCK_NB) == 0) return lock;
        if (errno != EWOULDBLOCK) return wrong();
        if (say) say("another process is fetching it; waiting for that");
        while (::flock(lock.file_, LOCK_EX) != 0)
            if (errno != EINTR) return wrong();
        return lock;
    }
    BlobLock(BlobLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    BlobLock(const BlobLock&) = delete;
    ~BlobLock() {
        if (file_ >= 0) ::close(file_);
    }

  private:
    explicit BlobLock(int file) : file_(file) {}
    int file_;
};

std::string repository_text(const RepositoryName& name) {
    return fmt::format("{}/{}", name.organisation, name.name);
}

bool is_commit(std::string_view text) {
    return text.size() == 40 && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

// What a person can do where the hub cannot be reached.
Error unreachable(const Endpoint& endpoint, const std::string& why) {
    return {ErrorKind::io,
            fmt::format("{} cannot be reached ({}). Without a network: fetch the model where there "
                        "is one (espalier pull, hf download), copy its directory here and give its "
                        "path; HF_ENDPOINT names a mirror, HF_HUB_CACHE a cache that is there",
                        endpoint.url.origin(), why)};
}

struct Listing {
    std::string commit;
    std::vector<std::string> files;
};

Expected<Listing> parse_listing(const std::string& text) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(text, "the hub's answer"));
    const auto wrong = [](const char* what) {
        return fail(ErrorKind::invalid, "the hub's answer has no {}", what);
    };
    if (!document.is_object()) return wrong("members");
    const auto sha = document.find("sha");
    if (sha == document.end() || !sha->is_string() || !is_commit(sha->get<std::string>()))
        return wrong("commit (sha)");
    const auto siblings = document.find("siblings");
    if (siblings == document.end() || !siblings->is_array()) return wrong("files (siblings)");
    Listing listing{sha->get<std::string>(), {}};
    for (const auto& file : *siblings) {
        const auto name = file.is_object() ? file.find("rfilename") : file.end();
        if (!file.is_object() || name == file.end() || !name->is_string()) continue;
        listing.files.push_back(name->get<std::string>());
    }
    return listing;
}

class Pull {
  public:
    Pull(const WantedModel& wanted, const PullOptions& options, Endpoint endpoint, fs::path cache)
        : wanted_(wanted),
          options_(options),
          endpoint_(std::move(endpoint)),
          cache_(std::move(cache)),
          repository_(cache_ / wanted.repository.folder()),
          fetcher_(endpoint_, interrupted_) {}

    Expected<Pulled> run();

  private:
    Expected<Listing> list();
    Expected<std::string> fetch_texts();
    Expected<void> fetch_all(const std::vector<std::string>& names);
    Expected<RemoteFile> look_up_file(const std::string& name);
    Expected<void> check_room(const std::vector<RemoteFile>& files);
    Expected<void> fetch_file(const RemoteFile& file);
    Expected<void> link(const RemoteFile& file);
    Expected<void> name_revision();
    void arrived(std::int64_t bytes);
    fs::path blob(const RemoteFile& file) const { return repository_ / "blobs" / file.etag; }
    fs::path snapshot() const { return repository_ / "snapshots" / listing_.commit; }
    std::string revision() const {
        return wanted_.repository.revision.empty() ? "main" : wanted_.repository.revision;
    }
    void say(const std::string& line) const {
        if (options_.say) options_.say(line);
    }

    const WantedModel& wanted_;
    const PullOptions& options_;
    const Endpoint endpoint_;
    const fs::path cache_, repository_;
    std::atomic<bool> interrupted_ = false;
    Fetcher fetcher_;
    Listing listing_;
    std::mutex mutex_;
    std::int64_t done_ = 0, total_ = 0;
    Pulled pulled_;
};

Expected<Listing> Pull::list() {
    std::string revision_part = revision();
    for (std::size_t at = 0; (at = revision_part.find('/', at)) != std::string::npos; at += 3)
        revision_part.replace(at, 1, "%2F");
    const std::string name = repository_text(wanted_.repository);
    std::string text;
    const auto reply = fetcher_.get_text(
        endpoint_.address(fmt::format("/api/models/{}/revision/{}", name, revision_part)),
        kMaxListBytes, std::min(options_.retries, 2), text);
    if (!reply && reply.error().kind == ErrorKind::io)
        return tl::unexpected<Error>(unreachable(endpoint_, reply.error().message));
    if (!reply) return tl::unexpected<Error>(reply.error());
    if (interrupted_) return fail(ErrorKind::io, "interrupted");
    if (reply->failure) return tl::unexpected<Error>(unreachable(endpoint_, reply->text()));
    if (reply->status == 401 || reply->status == 403)
        return fail(
            ErrorKind::not_found,
            "{}: {} says HTTP {}: there is no such model, or it is not open to everyone; {}", name,
            endpoint_.url.origin(), reply->status,
            endpoint_.token.empty() ? "HF_TOKEN gives it a token"
                                    : "the token of HF_TOKEN does not open it");
    if (reply->status == 404)
        return fail(ErrorKind::not_found, "{}: {} has no such model, or no revision '{}'", name,
                    endpoint_.url.origin(), revision());
    if (reply->status != 200)
        return fail(ErrorKind::io, "{}: {} says {}", name, endpoint_.url.origin(), reply->text());
    auto listing = parse_listing(text);
    if (!listing) return fail(listing.error().kind, "{}: {}", name, listing.error().message);
    return listing;
}

Expected<RemoteFile> Pull::look_up_file(const std::string& name) {
    return look_up(
        fetcher_, name,
        endpoint_.address(fmt::format("/{}/resolve/{}/{}", repository_text(wanted_.repository),
                                      listing_.commit, name)),
        options_.retries);
}

Expected<void> Pull::check_room(const std::vector<RemoteFile>& files) {
    std::error_code failure;
    const auto space = fs::space(repository_, failure);
    if (failure) return {};
    std::uint64_t needed = 0;
    for (const RemoteFile& file : files) {
        if (fs::exists(blob(file), failure)) continue;
        needed += static_cast<std::uint64_t>(file.size);
        const auto there = fs::path(blob(file).string() + ".espalier");
        if (fs::exists(there, failure)) needed -= std::min(needed, fs::file_size(there, failure));
    }
    if (needed > space.available)
        return fail(ErrorKind::exhausted, "{}: {} bytes are to be fetched, and {} are free",
                    repository_.string(), needed, space.available);
    return {};
}

void Pull::arrived(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (options_.progress)
        options_.progress(static_cast<std::uint64_t>(std::max<std::int64_t>(done_, 0)),
                          static_cast<std::uint64_t>(total_));
}

Expected<void> Pull::link(const RemoteFile& file) {
    const fs::path place = snapshot() / file.name;
    std::error_code failure;
    fs::create_directories(place.parent_path(), failure);
    const fs::path to =
        fs::relative(repository_ / "blobs", place.parent_path(), failure) / file.etag;
    if (!failure && fs::read_symlink(place, failure) == to) return {};
    const fs::path fresh = place.string() + fmt::format(".{}", ::getpid());
    fs::remove(fresh, failure);
    fs::create_symlink(to, fresh, failure);
    if (!failure) fs::rename(fresh, place, failure);
    if (failure) return fail(ErrorKind::io, "{}: {}", place.string(), failure.message());
    return {};
}

Expected<void> Pull::fetch_file(const RemoteFile& file) {
    std::error_code failure;
    const auto is_there = [&] {
        return fs::is_regular_file(blob(file), failure) &&
               static_cast<std::int64_t>(fs::file_size(blob(file), failure)) == file.size;
    };
    if (!is_there()) {
        ESPALIER_ASSIGN_OR_RETURN(
            const BlobLock lock,
            BlobLock::take(
                cache_ / ".locks" / wanted_.repository.folder() / (file.etag + ".lock"),
                [&](const std::string& line) { say(fmt::format("{}: {}", file.name, line)); }));
        if (!is_there()) {
            const Transfer transfer{.threads = options_.threads,
                                    .retries = options_.retries,
                                    .piece_bytes = options_.piece_bytes,
                                    .arrived = [this](std::int64_t bytes) { arrived(bytes); }};
            const auto fetched = download(file, endpoint_, transfer, blob(file), interrupted_);
            if (interrupted_)
                return fail(ErrorKind::io,
                            "interrupted; what came is kept, and the same command goes on from "
                            "there");
            ESPALIER_RETURN_IF_ERROR(fetched);
            pulled_.fetched_bytes += file.size;
            return link(file);
        }
    }
    arrived(file.size);
    return link(file);
}

Expected<void> Pull::fetch_all(const std::vector<std::string>& names) {
    std::vector<RemoteFile> files;
    for (const std::string& name : names) {
        ESPALIER_ASSIGN_OR_RETURN(const RemoteFile file, look_up_file(name));
        if (interrupted_) return fail(ErrorKind::io, "interrupted");
        files.push_back(file);
        total_ += file.size;
    }
    ESPALIER_RETURN_IF_ERROR(check_room(files));
    for (const RemoteFile& file : files) ESPALIER_RETURN_IF_ERROR(fetch_file(file));
    pulled_.files += static_cast<std::int64_t>(files.size());
    return {};
}

// Returns the index of the weights; empty: there is none.
Expected<std::string> Pull::fetch_texts() {
    const std::vector<std::string> names = needed_texts(listing_.files);
    if (std::ranges::find(names, "config.json") == names.end())
        return fail(ErrorKind::not_found, "{}: it holds no config.json",
                    repository_text(wanted_.repository));
    ESPALIER_RETURN_IF_ERROR(fetch_all(names));
    if (std::ranges::find(names, kIndexFile) == names.end()) return std::string();
    return read_text_file(snapshot() / kIndexFile, kMaxIndexBytes);
}

Expected<void> Pull::name_revision() {
    if (revision() == listing_.commit) return {};
    const fs::path ref = repository_ / "refs" / revision();
    const fs::path fresh = ref.string() + fmt::format(".{}", ::getpid());
    std::error_code failure;
    fs::create_directories(ref.parent_path(), failure);
    std::ofstream(fresh) << listing_.commit;
    fs::rename(fresh, ref, failure);
    if (failure) return fail(ErrorKind::io, "{}: {}", ref.string(), failure.message());
    return {};
}

Expected<Pulled> Pull::run() {
    ESPALIER_ASSIGN_OR_RETURN(listing_, list());
    std::error_code failure;
    for (const char* folder : {"blobs", "refs", "snapshots"}) {
        fs::create_directories(repository_ / folder, failure);
        if (failure)
            return fail(ErrorKind::io, "{}: {}", (repository_ / folder).string(),
                        failure.message());
    }
    pulled_.commit = listing_.commit;
    const auto named = [&](Error error) {
        error.message = fmt::format("{}: {}", repository_text(wanted_.repository), error.message);
        return tl::unexpected<Error>(std::move(error));
    };
    Expected<std::vector<std::string>> weights;
    if (wanted_.gguf.empty()) {
        const bool has_weights = std::ranges::any_of(listing_.files, [](const std::string& name) {
            return name.find('/') == std::string::npos && name.ends_with(".safetensors");
        });
        if (!has_weights) return named(needed_weights(listing_.files, {}).error());
        ESPALIER_ASSIGN_OR_RETURN(const std::string index, fetch_texts());
        weights = needed_weights(listing_.files, index);
    } else {
        weights = needed_gguf(listing_.files, wanted_.gguf);
    }
    if (!weights) return named(weights.error());
    ESPALIER_RETURN_IF_ERROR(fetch_all(*weights));
    ESPALIER_RETURN_IF_ERROR(name_revision());
    pulled_.path = wanted_.gguf.empty() ? snapshot() : snapshot() / wanted_.gguf;
    return std::move(pulled_);
}

bool is_offline() {
    const char* value = std::getenv("HF_HUB_OFFLINE");
    std::string text = value == nullptr ? "" : value;
    std::ranges::transform(text, text.begin(), [](char c) {
        return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
    return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

// The file in the snapshot that the revision names, where it is there.
std::optional<fs::path> cached_gguf(const WantedModel& wanted) {
    const std::string revision =
        wanted.repository.revision.empty() ? "" : "@" + wanted.repository.revision;
    const auto snapshot =
        checkpoint::resolve_model_path(repository_text(wanted.repository) + revision);
    std::error_code failure;
    if (!snapshot || !fs::is_regular_file(*snapshot / wanted.gguf, failure)) return std::nullopt;
    return *snapshot / wanted.gguf;
}

}  // namespace

std::optional<WantedModel> wanted_model(std::string_view model) {
    const std::size_t at = std::min(model.find('@'), model.size());
    const std::string_view path = model.substr(0, at);
    const std::size_t first = std::min(path.find('/'), path.size());
    const std::size_t second = std::min(path.find('/', first + 1), path.size());
    const auto repository = checkpoint::repository_name(std::string(path.substr(0, second)) +
                                                        std::string(model.substr(at)));
    if (!repository) return std::nullopt;
    if (second == path.size()) return WantedModel{*repository, {}};
    const std::string file(path.substr(second + 1));
    if (!is_plain_path(file) || !is_gguf_name(file)) return std::nullopt;
    return WantedModel{*repository, file};
}

Expected<Pulled> pull(const WantedModel& wanted, const PullOptions& options) {
    if (!tls::has_digests())
        return fail(ErrorKind::unsupported,
                    "{}: this build fetches nothing (libssl-dev was not there)",
                    repository_text(wanted.repository));
    if (is_offline())
        return fail(ErrorKind::unsupported, "{}: HF_HUB_OFFLINE forbids to fetch it",
                    repository_text(wanted.repository));
    ESPALIER_ASSIGN_OR_RETURN(Endpoint endpoint, Endpoint::of_environment());
    ESPALIER_ASSIGN_OR_RETURN(const fs::path cache, checkpoint::hub_cache());
    return Pull(wanted, options, std::move(endpoint), cache).run();
}

Expected<std::string> on_disk(const std::string& model, const PullOptions& options) {
    std::error_code failure;
    if (fs::exists(model, failure) || fs::is_symlink(model, failure)) return model;
    const auto wanted = wanted_model(model);
    if (!wanted) return model;
    if (!wanted->gguf.empty()) {
        if (const auto path = cached_gguf(*wanted)) return path->string();
    } else if (checkpoint::resolve_model_path(model)) {
        return model;
    }
    if (is_offline() && wanted->gguf.empty()) return model;  // opening it says what is missing
    if (options.say) options.say(fmt::format("{} is not here: fetching it", model));
    const auto pulled = pull(*wanted, options);
    if (!pulled)
        return fail(pulled.error().kind, "{}: no such directory, and not in the hub cache; {}",
                    model, pulled.error().message);
    return wanted->gguf.empty() ? model : pulled->path.string();
}

}  // namespace espalier::hub
