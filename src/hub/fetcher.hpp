// SPDX-License-Identifier: Apache-2.0
// Requests of one thread to a hub and to where it redirects. The token goes to the hub's own origin
// and to no other.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "client/http_client.hpp"

namespace espalier::hub {

struct Endpoint {
    client::Url url;
    std::string token;  // empty: none

    // HF_ENDPOINT, or the default; HF_TOKEN.
    static Expected<Endpoint> of_environment();
    std::string address(const std::string& path) const { return url.origin() + url.path + path; }
};

struct Reply {
    std::optional<client::Failure> failure;  // the connection's; then there is no status
    int status = 0;
    client::Headers headers;
    std::string address;   // that answered, behind redirects
    std::string location;  // where it redirects, if that was not followed; absolute

    const std::string* header(std::string_view name) const;
    // Another try may go well.
    bool is_passing() const;
    // "HTTP 503" or the connection's failure.
    std::string text() const;
};

// Takes what comes; false: enough.
using Sink = std::function<bool(std::string_view)>;

class Fetcher {
  public:
    // interrupted: is set by Ctrl-C.
    Fetcher(const Endpoint& endpoint, std::atomic<bool>& interrupted)
        : endpoint_(endpoint), interrupted_(interrupted) {}

    // Redirects within the origin are followed, others told.
    Expected<Reply> head(const std::string& address);
    // sink: of the body of a 200 or 206. range: "bytes=0-9", or empty.
    Expected<Reply> get(const std::string& address, const std::string& range, const Sink& sink);
    // The body of a 200, tried again while that may help; more than limit_bytes is an error.
    Expected<Reply> get_text(const std::string& address, std::size_t limit_bytes, int retries,
                             std::string& text);
    Expected<Reply> head_again(const std::string& address, int retries);

    const Endpoint& endpoint() const { return endpoint_; }
    bool interrupted() const { return interrupted_; }
    // Waits before the next try; longer each time.
    void wait(int tries) const;

  private:
    Expected<Reply> exchange(const std::string& method, const std::string& address,
                             const std::string& range, const Sink& sink);
    Expected<client::HttpClient*> client_of(const client::Url& server);

    const Endpoint& endpoint_;
    std::atomic<bool>& interrupted_;
    std::map<std::string, std::unique_ptr<client::HttpClient>> clients_;  // by origin
};

// The address without its query, which may hold a signature.
std::string shown(std::string_view address);

}  // namespace espalier::hub
