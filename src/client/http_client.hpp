// SPDX-License-Identifier: Apache-2.0
// HTTP calls to one server, any number at a time, on the thread that runs them; with timers and
// Ctrl-C, so that a caller needs no thread of its own. A connection per call. Beast stays behind
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "client/failure.hpp"
#include "client/url.hpp"

namespace espalier::client {

struct ServerAddress {
    Url url = {};
    std::string api_key = {};  // sent as a bearer token; empty: none
    // A call fails when nothing useful came for this long: a connection, a head, progress.
    double timeout_seconds = 600;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Call {
    std::string method = "GET";
    std::string path = {};    // behind the url's
    std::string body = {};    // JSON
    Headers headers = {};     // of the request, beside those that every call has
    bool any_length = false;  // the answer may be longer than kMaxBodyBytes
};

// Verdict on received bytes: progress restarts the call's timeout, waiting does not.
enum class Verdict { progress, waiting, enough };

// Hears of one call, on the thread that runs the client.
class CallListener {
  public:
    virtual ~CallListener() = default;
    virtual void on_status(int status) = 0;
    // Behind the status: names in lower case.
    virtual void on_headers(const Headers&) {}
    // enough: the connection is closed, and the call has ended well.
    virtual Verdict on_bytes(std::string_view bytes) = 0;
    // Once, the last call: the whole answer came, or why it did not.
    virtual void on_end(std::optional<Failure> failure) = 0;
};

class HttpClient {
  public:
    // Resolves the server's name; nothing is sent. https: the server's certificate must be for its
    // name and believed by the system.
    static Expected<std::unique_ptr<HttpClient>> open(const ServerAddress& address);
    virtual ~HttpClient() = default;

    virtual void start(Call call, std::shared_ptr<CallListener> listener) = 0;
    // Every call under way ends with this.
    virtual void end_all(const Failure& failure) = 0;
    virtual void after(double seconds, std::function<void()> act) = 0;
    // Until stop(); SIGINT and SIGTERM call on_interrupt meanwhile. May be run again.
    virtual void run(std::function<void()> on_interrupt) = 0;
    virtual void stop() = 0;
    // Seconds since the client was made.
    virtual double now() const = 0;

    static constexpr std::uint32_t kMaxHeadBytes = 64 << 10;
    static constexpr std::uint64_t kMaxBodyBytes = 256 << 20;
};

// One small call from its start to its end: the body of a 200, at most limit_bytes of it.
Expected<std::string> fetch(HttpClient& client, Call call, std::size_t limit_bytes);

}  // namespace espalier::client
