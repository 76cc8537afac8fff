// SPDX-License-Identifier: Apache-2.0
// Publishing over ZeroMQ: numbers without gaps, replays from any of them, requests that are none.
// tests/clients/kv_events_test.py rebuilds a server's index with a client's own library.
#include "server/kv_events.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "server/running_server.hpp"
#include "server/zmq_library.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

class Subscriber {
  public:
    Subscriber(int kind, const std::string& endpoint)
        : context_(zmq_.ctx_new()), socket_(zmq_.socket(context_, kind)) {
        const int none = 0;
        zmq_.setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
        zmq_.setsockopt(socket_, ZMQ_RCVHWM, &none, sizeof none);
        const int is_ipv6 = 1;
        zmq_.setsockopt(socket_, ZMQ_IPV6, &is_ipv6, sizeof is_ipv6);
        if (kind == ZMQ_SUB) zmq_.setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
        EXPECT_EQ(zmq_.connect(socket_, endpoint.c_str()), 0);
    }
    ~Subscriber() {
        zmq_.close(socket_);
        zmq_.ctx_term(context_);
    }
    void send(const std::vector<std::string>& frames) {
        for (std::size_t i = 0; i < frames.size(); ++i)
            zmq_.send(socket_, frames[i].data(), frames[i].size(),
                      i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
    std::vector<std::string> receive() {
        std::vector<std::string> frames;
        for (bool more = true; more;) {
            zmq_msg_t message;
            zmq_.msg_init(&message);
            if (zmq_.msg_recv(&message, socket_, 0) < 0) return {};
            frames.emplace_back(static_cast<const char*>(zmq_.msg_data(&message)),
                                zmq_.msg_size(&message));
            more = zmq_.msg_more(&message) != 0;
            zmq_.msg_close(&message);
        }
        return frames;
    }

  private:
    ZmqLibrary zmq_ = *ZmqLibrary::load();
    void* context_;
    void* socket_;
};

std::string number(std::uint64_t value) {
    std::string bytes(8, '\0');
    for (std::size_t i = 8; i-- > 0; value >>= 8) bytes[i] = static_cast<char>(value & 0xff);
    return bytes;
}

std::uint64_t number_of(const std::string& bytes) {
    std::uint64_t value = 0;
    for (const char byte : bytes) value = (value << 8) | static_cast<unsigned char>(byte);
    return value;
}

Json events_of(const std::string& payload) {
    return Json::from_msgpack(payload.begin(), payload.end())[1];
}

// Every event from that number on, by replay.
std::vector<Json> replay(const KvEvents& events, std::uint64_t first) {
    Subscriber subscriber(ZMQ_DEALER, events.replay_endpoint());
    subscriber.send({"", number(first)});
    std::vector<Json> list;
    for (std::uint64_t next = first;; ++next) {
        const auto frames = subscriber.receive();
        if (frames.size() != 3 || number_of(frames[1]) == ~std::uint64_t{0}) return list;
        EXPECT_EQ(number_of(frames[1]), next);
        for (const Json& event : events_of(frames[2])) list.push_back(event);
    }
}

cache::StoredPage page(std::uint64_t hash, std::span<const std::int32_t, 64> tokens,
                       std::uint64_t salt = 0) {
    return {.hash = hash, .parent_hash = {}, .salt = salt, .tokens = tokens};
}

TEST(KvEvents, AreNumberedAndReplayed) {
    Log log(Log::Format::text);
    auto events = KvEvents::start({.endpoint = "tcp://127.0.0.1:*",
                                   .replay_endpoint = "tcp://127.0.0.1:*",
                                   .topic = "kv@node"},
                                  log);
    ASSERT_TRUE(events) << events.error().message;
    const std::array<std::int32_t, 64> tokens{1, 2, 3};
    Subscriber subscriber(ZMQ_SUB, (*events)->endpoint());
    // A subscription takes its time, and what was said before is lost: what a replay is for.
    std::vector<std::string> first;
    std::thread saying([&] {
        for (std::uint64_t hash = 1; hash <= 5000; ++hash) {
            (*events)->stored(page(hash, tokens));
            if (hash % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        (*events)->stored(page(7000, tokens, 9));  // salted: said to no one
        (*events)->removed(7000, 9);
        (*events)->removed(1, 0);
    });
    std::uint64_t next = 0;
    std::vector<Json> heard;
    do {
        const auto frames = subscriber.receive();
        ASSERT_EQ(frames.size(), 3u);
        EXPECT_EQ(frames[0], "kv@node");
        if (first.empty()) {
            first = frames;
            next = number_of(frames[1]);
        }
        EXPECT_EQ(number_of(frames[1]), next++);
        for (const Json& event : events_of(frames[2])) heard.push_back(event);
    } while (heard.back()[0] != "BlockRemoved");
    saying.join();
    std::vector<Json> all = replay(**events, 0);
    ASSERT_EQ(all.size(), 1 + 5000 + 1u);
    EXPECT_EQ(all.front(), Json::array({"AllBlocksCleared"}));
    for (std::uint64_t hash = 1; hash <= 5000; ++hash) ASSERT_EQ(all[hash][1], Json::array({hash}));
    EXPECT_EQ(all.back(), Json::array({"BlockRemoved", {1}, "GPU"}));
    // The tail that was heard is the tail of the replay.
    ASSERT_LE(heard.size(), all.size());
    EXPECT_TRUE(std::equal(heard.rbegin(), heard.rend(), all.rbegin()));
    EXPECT_EQ(replay(**events, number_of(first[1])), heard);
    EXPECT_EQ(replay(**events, 1'000'000).size(), 0u);
}

TEST(KvEvents, RequestsForReplaysThatAreNoneAreNotAnswered) {
    Log log(Log::Format::text);
    auto events = KvEvents::start(
        {.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = "tcp://127.0.0.1:*", .topic = {}},
        log);
    ASSERT_TRUE(events);
    Subscriber subscriber(ZMQ_DEALER, (*events)->replay_endpoint());
    for (const std::vector<std::string>& frames :
         std::vector<std::vector<std::string>>{{""},
                                               {number(0)},
                                               {"x", number(0)},
                                               {"", "short"},
                                               {"", number(0), "more"},
                                               {"", number(0), "more", "more", "more"}})
        subscriber.send(frames);
    subscriber.send({"", number(0)});
    EXPECT_EQ(subscriber.receive()[1], number(0));  // the one that is a request
    EXPECT_EQ(subscriber.receive()[1], std::string(8, '\xff'));
}

TEST(KvEvents, AddressesThatCannotBeTakenEndTheStart) {
    Log log(Log::Format::text);
    const auto refused = [&](const std::string& endpoint, const std::string& replay) {
        const auto events =
            KvEvents::start({.endpoint = endpoint, .replay_endpoint = replay, .topic = {}}, log);
        return events ? std::string() : events.error().field;
    };
    EXPECT_EQ(refused("tcp://*", ""), "kv_events_endpoint");
    EXPECT_EQ(refused("nonsense", ""), "kv_events_endpoint");
    EXPECT_EQ(refused("tcp://127.0.0.1:*", "tcp://x"), "kv_events_replay_endpoint");
    const auto taken =
        KvEvents::start({.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = {}, .topic = {}}, log);
    ASSERT_TRUE(taken);
    EXPECT_EQ(refused("tcp://127.0.0.1:*", (*taken)->endpoint()), "kv_events_replay_endpoint");
    ServerOptions options = test_options();
    options.kv_events_replay_endpoint = "tcp://127.0.0.1:*";
    EXPECT_EQ(Server::start(options, log).error().field, "kv_events_replay_endpoint");
}

// The machine has addresses of IPv6.
bool has_ipv6() {
    const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    const bool is_bound =
        ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(socket);
    return is_bound;
}

TEST(KvEvents, AnAddressMayBeOfIpv6) {
    Log log(Log::Format::text);
    const auto events = KvEvents::start(
        {.endpoint = "tcp://[::]:*", .replay_endpoint = "tcp://[::1]:*", .topic = {}}, log);
    ASSERT_EQ(events.has_value(), has_ipv6());
    if (!events) return;
    EXPECT_TRUE((*events)->endpoint().starts_with("tcp://[::]:")) << (*events)->endpoint();
    Subscriber subscriber(ZMQ_DEALER, (*events)->replay_endpoint());
    subscriber.send({"", number(0)});
    EXPECT_EQ(subscriber.receive()[1], number(0));
    EXPECT_EQ(subscriber.receive()[1], std::string(8, '\xff'));
}

TEST(KvEvents, OfAServerAreThePagesOfItsPrompts) {
    RunningServer::Setup setup;
    setup.server.kv_events_endpoint = "tcp://127.0.0.1:*";
    setup.server.kv_events_replay_endpoint = "tcp://127.0.0.1:*";
    RunningServer server(setup);
    Client client = server.client();
    Json body = RunningServer::completion(std::string(200, 'a'), 2);
    EXPECT_EQ(client.post("/v1/completions", body).status, 200);
    body["cache_salt"] = "mine";
    body["prompt"] = std::string(200, 'b');
    EXPECT_EQ(client.post("/v1/completions", body).status, 200);
    const Json tokens =
        client.post("/tokenize", Json{{"prompt", std::string(200, 'a')}}).json()["tokens"];
    const auto& kv_events = *server.server->kv_events();
    std::vector<Json> events;
    while (events.size() < 2) events = replay(kv_events, 0);
    ASSERT_EQ(events.size(), 2u);  // nothing of the salted one
    const std::size_t pages = events[1][1].size();
    EXPECT_EQ(pages, tokens.size() / 64);
    EXPECT_EQ(events[1][3],
              Json(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(pages * 64)));
}

}  // namespace
}  // namespace espalier::server::test
