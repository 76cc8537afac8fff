// SPDX-License-Identifier: Apache-2.0
#include "hub/download.hpp"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "hub/partial_file.hpp"
#include "tls/digest.hpp"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSha256Digits = 64, kGitDigits = 40;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 45;  // 35 TB

std::optional<std::int64_t> byte_count(const std::string* text) {
    std::int64_t value = 0;
    if (text == nullptr) return std::nullopt;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value < 0)
        return std::nullopt;
    return value;
}

// Without quotes and the mark of a weak one; empty: no checksum.
std::string checksum_of(std::string text) {
    if (text.starts_with("W/")) text.erase(0, 2);
    std::erase(text, '"');
    const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    const bool is_known = text.size() == kSha256Digits || text.size() == kGitDigits;
    return is_known && std::ranges::all_of(text, is_hex) ? text : std::string();
}

// Where the file really comes from, once a redirect has told; shared by the threads.
class Source {
  public:
    explicit Source(const std::string& address) : first_(address), now_(address) {}
    std::string now() {
        const std::lock_guard lock(mutex_);
        return now_;
    }
    void learn(const std::string& address) {
        const std::lock_guard lock(mutex_);
        now_ = address;
    }
    // A signed address that is over: the hub gives a new one. False: it is the hub's own.
    bool forget(const std::string& address) {
        const std::lock_guard lock(mutex_);
        if (address == first_) return false;
        if (now_ == address) now_ = first_;
        return true;
    }

  private:
    const std::string first_;
    std::mutex mutex_;
    std::string now_;
};

// The work of one download, shared by its threads.
class Work {
  public:
    Work(const RemoteFile& file, const Endpoint& endpoint, const Transfer& transfer,
         PartialFile& partial, std::atomic<bool>& interrupted)
        : file_(file),
          endpoint_(endpoint),
          transfer_(transfer),
          partial_(partial),
          interrupted_(interrupted),
          source_(file.address) {}

    Expected<void> run() {
        const auto count = static_cast<int>(
            std::min<std::int64_t>(std::max(transfer_.threads, 1), partial_.pieces()));
        std::vector<std::thread> threads;
        for (int i = 1; i < count; ++i) threads.emplace_back([this] { fetch_pieces(); });
        fetch_pieces();
        for (std::thread& thread : threads) thread.join();
        if (error_) return tl::unexpected<Error>(*error_);
        return {};
    }
    // The server sends whole files alone.
    bool needs_one_piece() const { return needs_one_piece_; }

  private:
    void fetch_pieces() {
        Fetcher fetcher(endpoint_, interrupted_);
        while (!stopped_) {
            const std::int64_t piece = next_++;
            if (piece >= partial_.pieces()) return;
            if (partial_.has(piece)) continue;
            const auto fetched = fetch_piece(fetcher, piece);
            if (fetched) continue;
            const std::lock_guard lock(mutex_);
            stopped_ = true;
            if (!error_) error_ = fetched.error();
        }
    }

    Expected<void> fetch_piece(Fetcher& fetcher, std::int64_t piece) {
        const std::int64_t end = partial_.end(piece);
        std::int64_t at = partial_.begin(piece);
        for (int tries = 0; at < end;) {
            if (stopped_ || interrupted_) return fail(ErrorKind::io, "{}: interrupted", file_.name);
            const std::int64_t before = at;
            ESPALIER_ASSIGN_OR_RETURN(const Reply reply, fetch_some(fetcher, at, end));
            if (at == end) break;
            if (at > before) tries = 0;
            if (interrupted_) continue;
            const bool is_over = (reply.status >= 401 && reply.status <= 404) ||
                                 reply.status == 410;  // a signed address has its time
            const bool may_pass =
                at > before || reply.is_passing() || (is_over && source_.forget(asked_of(reply)));
            if (!may_pass || ++tries > transfer_.retries)
                return fail(ErrorKind::io, "{}: {} ({}; {} of {} bytes of this part came)",
                            file_.name, reply.text(), shown(reply.address),
                            at - partial_.begin(piece), end - partial_.begin(piece));
            fetcher.wait(tries);
        }
        return partial_.mark_whole(piece);
    }

    static std::string asked_of(const Reply& reply) { return reply.address; }

    // One request for [at, end); `at` moves by what came.
    Expected<Reply> fetch_some(Fetcher& fetcher, std::int64_t& at, std::int64_t end) {
        Expected<void> written;
        bool is_long = false;
        const bool is_whole = at == 0 && end == file_.size;
        const std::string range =
            is_whole ? std::string() : fmt::format("bytes={}-{}", at, end - 1);
        ESPALIER_ASSIGN_OR_RETURN(
            Reply reply, fetcher.get(source_.now(), range, [&](std::string_view bytes) {
                if (static_cast<std::int64_t>(bytes.size()) > end - at) {
                    is_long = true;
                    return false;
                }
                written = partial_.write(at, bytes);
                if (!written) return false;
                at += static_cast<std::int64_t>(bytes.size());
                if (transfer_.arrived) transfer_.arrived(static_cast<std::int64_t>(bytes.size()));
                return at < end && !stopped_;
            }));
        ESPALIER_RETURN_IF_ERROR(written);
        if (!range.empty() && reply.status == 200) {
            needs_one_piece_ = true;
            return fail(ErrorKind::unsupported, "{}: {} sends no ranges", file_.name,
                        shown(reply.address));
        }
        if (is_long)
            return fail(ErrorKind::invalid,
                        "{}: {} sends more than the {} bytes that were asked for", file_.name,
                        shown(reply.address), end - at);
        if (!reply.failure && (reply.status == 200 || reply.status == 206))
            source_.learn(reply.address);
        return reply;
    }

    const RemoteFile& file_;
    const Endpoint& endpoint_;
    const Transfer& transfer_;
    PartialFile& partial_;
    std::atomic<bool>& interrupted_;
    Source source_;
    std::atomic<std::int64_t> next_ = 0;
    std::atomic<bool> stopped_ = false, needs_one_piece_ = false;
    std::mutex mutex_;
    std::optional<Error> error_;
};

Expected<void> check_digest(const RemoteFile& file, const fs::path& path) {
    const bool is_sha256 = file.etag.size() == kSha256Digits;
    ESPALIER_ASSIGN_OR_RETURN(const std::string made,
                              is_sha256 ? tls::sha256_of_file(path) : tls::git_blob_of_file(path));
    if (made == file.etag) return {};
    std::error_code ignored;
    fs::remove(path, ignored);
    return fail(ErrorKind::invalid,
                "{}: its {} is {}, and the hub says {}; what came was thrown away", file.name,
                is_sha256 ? "SHA-256" : "SHA-1", made, file.etag);
}

Expected<void> transfer_pieces(const RemoteFile& file, const Endpoint& endpoint,
                               const Transfer& transfer, const fs::path& path,
                               std::atomic<bool>& interrupted) {
    std::int64_t piece_bytes = transfer.piece_bytes;
    for (;;) {
        ESPALIER_ASSIGN_OR_RETURN(PartialFile partial,
                                  PartialFile::open(path, file.size, piece_bytes));
        if (transfer.arrived) transfer.arrived(partial.bytes_there());
        Work work(file, endpoint, transfer, partial, interrupted);
        const auto ran = work.run();
        if (ran) return partial.finish();
        if (!work.needs_one_piece() || piece_bytes >= file.size) return ran;
        if (transfer.arrived) transfer.arrived(-partial.bytes_there());
        piece_bytes = file.size;  // a server without ranges: all of it, by one thread
    }
}

}  // namespace

Expected<RemoteFile> look_up(Fetcher& fetcher, const std::string& name, const std::string& address,
                             int retries) {
    ESPALIER_ASSIGN_OR_RETURN(const Reply reply, fetcher.head_again(address, retries));
    const bool redirects = !reply.location.empty();
    if (reply.failure || (reply.status != 200 && !redirects))
        return fail(ErrorKind::io, "{}: {} ({})", name, reply.text(), shown(reply.address));
    const std::string* etag = reply.header("x-linked-etag");
    if (etag == nullptr && !redirects) etag = reply.header("etag");
    const std::string* size = reply.header("x-linked-size");
    if (size == nullptr && !redirects) size = reply.header("content-length");
    RemoteFile file{.name = name, .address = address, .etag = {}, .size = 0};
    if (etag != nullptr) file.etag = checksum_of(*etag);
    if (file.etag.empty())
        return fail(ErrorKind::invalid, "{}: the hub says no checksum of it (ETag: {})", name,
                    etag == nullptr ? "none" : etag->substr(0, 100));
    const auto bytes = byte_count(size);
    if (!bytes || *bytes > kMostBytes)
        return fail(ErrorKind::invalid, "{}: the hub says no size of it ({})", name,
                    size == nullptr ? "none" : size->substr(0, 100));
    file.size = *bytes;
    return file;
}

Expected<void> download(const RemoteFile& file, const Endpoint& endpoint, const Transfer& transfer,
                        const fs::path& target, std::atomic<bool>& interrupted) {
    const fs::path partial = target.string() + ".espalier";
    ESPALIER_RETURN_IF_ERROR(transfer_pieces(file, endpoint, transfer, partial, interrupted));
    ESPALIER_RETURN_IF_ERROR(check_digest(file, partial));
    std::error_code failure;
    fs::rename(partial, target, failure);
    if (failure) return fail(ErrorKind::io, "{}: {}", target.string(), failure.message());
    return {};
}

}  // namespace espalier::hub
