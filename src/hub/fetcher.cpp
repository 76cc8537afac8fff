// SPDX-License-Identifier: Apache-2.0
#include "hub/fetcher.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "hub/endpoint.hpp"

namespace espalier::hub {
namespace {

constexpr int kMostRedirects = 6;
constexpr double kTimeoutSeconds = 60;
constexpr std::chrono::milliseconds kFirstWait{250};

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

class Hearing final : public client::CallListener {
  public:
    Hearing(client::HttpClient& client, const Sink& sink) : client_(client), sink_(sink) {}
    void on_status(int status) override { reply.status = status; }
    void on_headers(const client::Headers& headers) override { reply.headers = headers; }
    client::Verdict on_bytes(std::string_view bytes) override {
        const bool is_wanted = reply.status == 200 || reply.status == 206;
        return is_wanted && sink_ && sink_(bytes) ? client::Verdict::progress
                                                  : client::Verdict::enough;
    }
    void on_end(std::optional<client::Failure> failure) override {
        reply.failure = std::move(failure);
        client_.stop();
    }
    Reply reply;

  private:
    client::HttpClient& client_;
    const Sink& sink_;
};

// A location against the address that named it.
Expected<client::Target> resolved(const client::Target& base, const std::string& location) {
    if (location.starts_with("//"))
        return client::parse_target((base.server.secure ? "https:" : "http:") + location);
    if (location.starts_with('/')) return client::parse_target(base.server.origin() + location);
    return client::parse_target(location);
}

}  // namespace

std::string shown(std::string_view address) {
    return std::string(address.substr(0, address.find('?')));
}

Expected<Endpoint> Endpoint::of_environment() {
    std::string address = variable("HF_ENDPOINT");
    if (address.empty()) address = kDefaultEndpoint;
    auto url = client::parse_url(address);
    if (!url) return fail(url.error().kind, "HF_ENDPOINT: {}", url.error().message);
    Endpoint endpoint{std::move(*url), variable("HF_TOKEN")};
    const auto is_token = [](char c) { return c > ' ' && c < '\x7f'; };
    if (!std::ranges::all_of(endpoint.token, is_token))
        return fail(ErrorKind::invalid, "HF_TOKEN: has characters that no header may have");
    return endpoint;
}

const std::string* Reply::header(std::string_view name) const {
    const auto found = std::ranges::find(
        headers, name, [](const auto& pair) { return std::string_view(pair.first); });
    return found == headers.end() ? nullptr : &found->second;
}

bool Reply::is_passing() const {
    if (failure) return failure->kind != client::FailureKind::interrupted;
    return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

std::string Reply::text() const {
    return failure ? failure->message : fmt::format("HTTP {}", status);
}

Expected<client::HttpClient*> Fetcher::client_of(const client::Url& server) {
    auto& client = clients_[server.origin()];
    if (!client) {
        const bool is_own = server.origin() == endpoint_.url.origin();
        ESPALIER_ASSIGN_OR_RETURN(
            client, client::HttpClient::open({.url = server,
                                              .api_key = is_own ? endpoint_.token : std::string(),
                                              .timeout_seconds = kTimeoutSeconds}));
    }
    return client.get();
}

Expected<Reply> Fetcher::exchange(const std::string& method, const std::string& address,
                                  const std::string& range, const Sink& sink) {
    ESPALIER_ASSIGN_OR_RETURN(client::Target target, client::parse_target(address));
    for (int hops = 0; hops <= kMostRedirects; ++hops) {
        ESPALIER_ASSIGN_OR_RETURN(client::HttpClient * client, client_of(target.server));
        client::Call call{.method = method, .path = target.path, .any_length = true};
        if (!range.empty()) call.headers.emplace_back("Range", range);
        const auto heard = std::make_shared<Hearing>(*client, sink);
        client->start(std::move(call), heard);
        client->run([&] {
            interrupted_ = true;
            client->end_all({client::FailureKind::interrupted, "interrupted"});
        });
        Reply reply = std::move(heard->reply);
        reply.address = target.server.origin() + target.path;
        const bool is_redirect = !reply.failure && reply.status >= 300 && reply.status < 400;
        if (!is_redirect) return reply;
        const std::string* location = reply.header("location");
        if (location == nullptr)
            return fail(ErrorKind::invalid, "{}: a redirect to nowhere", shown(reply.address));
        auto next = resolved(target, *location);
        if (!next)
            return fail(ErrorKind::invalid, "{}: redirects to what is no address",
                        shown(reply.address));
        if (target.server.secure && !next->server.secure)
            return fail(ErrorKind::invalid, "{}: redirects to {}, which is not encrypted",
                        shown(reply.address), next->server.origin());
        if (method == "HEAD" && next->server.origin() != target.server.origin()) {
            reply.location = next->server.origin() + next->path;
            return reply;
        }
        target = std::move(*next);
    }
    return fail(ErrorKind::invalid, "{}: more than {} redirects", shown(address), kMostRedirects);
}

Expected<Reply> Fetcher::head(const std::string& address) {
    return exchange("HEAD", address, {}, {});
}

Expected<Reply> Fetcher::get(const std::string& address, const std::string& range,
                             const Sink& sink) {
    return exchange("GET", address, range, sink);
}

void Fetcher::wait(int tries) const {
    const auto end = std::chrono::steady_clock::now() + kFirstWait * (1 << std::min(tries, 5));
    while (!interrupted_ && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

Expected<Reply> Fetcher::get_text(const std::string& address, std::size_t limit_bytes, int retries,
                                  std::string& text) {
    for (int tries = 0;; ++tries) {
        text.clear();
        bool is_long = false;
        ESPALIER_ASSIGN_OR_RETURN(Reply reply, get(address, {}, [&](std::string_view bytes) {
                                      is_long = text.size() + bytes.size() > limit_bytes;
                                      if (!is_long) text += bytes;
                                      return !is_long;
                                  }));
        if (is_long)
            return fail(ErrorKind::exhausted, "{}: more than {} bytes", shown(address),
                        limit_bytes);
        if (!reply.is_passing() || tries >= retries || interrupted_) return reply;
        wait(tries);
    }
}

Expected<Reply> Fetcher::head_again(const std::string& address, int retries) {
    for (int tries = 0;; ++tries) {
        ESPALIER_ASSIGN_OR_RETURN(Reply reply, head(address));
        if (!reply.is_passing() || tries >= retries || interrupted_) return reply;
        wait(tries);
    }
}

}  // namespace espalier::hub
