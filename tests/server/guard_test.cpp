// SPDX-License-Identifier: Apache-2.0
#include "server/guard.hpp"

#include <gtest/gtest.h>

namespace espalier::server {
namespace {

HttpRequest asked(const std::string& host, const std::string& origin = {},
                  const std::string& authorization = {}) {
    HttpRequest head;
    head.method = "POST";
    head.path = "/v1/completions";
    head.host = host;
    head.origin = origin;
    head.authorization = authorization;
    head.content_type = "application/json";
    return head;
}

int status(const Guard& guard, const HttpRequest& head, bool is_open = false) {
    const auto error = guard.check(head, is_open);
    return error ? error->status : 200;
}

TEST(Guard, WithoutAKeyOnlyOwnNamesAreTaken) {
    const Guard guard({.api_keys = {}, .allowed_hosts = {"llm.lan"}, .allowed_origins = {}});
    for (const char* host :
         {"127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]:8000", "localhost", "LocalHost:8000",
          "x.localhost:1", "llm.lan", "LLM.lan:8000"})
        EXPECT_EQ(status(guard, asked(host)), 200) << host;
    for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                             "localhost.evil.example", "127.0.0.1@evil.example", "[::1].evil",
                             "127.0.0.1x", "0x7f.1", "sub.llm.lan", "evillocalhost"})
        EXPECT_EQ(status(guard, asked(host)), 403) << host;
    EXPECT_EQ(status(guard, asked("")), 400);
    // Load balancers ask by HTTP/1.0, which has no Host; browsers do not.
    HttpRequest old = asked("");
    old.is_http_1_0 = true;
    EXPECT_EQ(status(guard, old), 200);
    old.origin = "http://evil.example";
    EXPECT_EQ(status(guard, old), 403);
    old = asked("evil.example");
    old.is_http_1_0 = true;
    EXPECT_EQ(status(guard, old), 403);
    EXPECT_EQ(status(Guard({{}, {"*"}, {}}), asked("any.example")), 200);
}

TEST(Guard, AnotherPagesOriginIsRefused) {
    const Guard guard({{}, {}, {"https://chat.example"}});
    EXPECT_EQ(status(guard, asked("127.0.0.1:8000", "http://127.0.0.1:8000")), 200);
    EXPECT_EQ(status(guard, asked("127.0.0.1:8000", "https://chat.example")), 200);
    EXPECT_TRUE(guard.allows_origin("https://chat.example"));
    for (const char* origin : {"http://127.0.0.1:9000", "http://127.0.0.1", "null",
                               "http://evil.example", "https://chat.example.evil", "file://",
                               "http://127.0.0.1:8000.evil.example", "http://chat.example"}) {
        EXPECT_EQ(status(guard, asked("127.0.0.1:8000", origin)), 403) << origin;
        EXPECT_EQ(status(guard, asked("127.0.0.1:8000", origin), true), 403) << origin;
    }
}

TEST(Guard, KeysOpenEverythingElse) {
    const Guard guard({{"sk-one", "sk-two"}, {}, {}});
    EXPECT_EQ(status(guard, asked("any.example", "", "Bearer sk-one")), 200);
    EXPECT_EQ(status(guard, asked("any.example", "", "bearer sk-two")), 200);
    EXPECT_EQ(guard.key_of(asked("h", "", "Bearer sk-one"))->tenant, 1u);
    EXPECT_EQ(guard.key_of(asked("h", "", "Bearer sk-two"))->tenant, 2u);
    for (const char* given :
         {"", "sk-one", "Bearer", "Bearer ", "Bearer sk", "Bearer sk-on", "Bearer sk-onesk-one",
          "Bearer sk-one ", "Basic sk-one", "Bearer sk-onf"}) {
        EXPECT_EQ(status(guard, asked("127.0.0.1", "", given)), 401) << given;
        EXPECT_EQ(status(guard, asked("127.0.0.1", "", given), true), 200) << given;
    }
}

TEST(Guard, PostsAreJson) {
    const Guard guard({});
    HttpRequest head = asked("127.0.0.1");
    for (const char* type : {"application/json", "application/json; charset=utf-8",
                             "Application/JSON ;charset=utf-8"}) {
        head.content_type = type;
        EXPECT_EQ(status(guard, head), 200) << type;
    }
    for (const char* type : {"", "text/plain", "application/jsonp", "multipart/form-data",
                             "application/x-www-form-urlencoded", "text/plain; application/json"}) {
        head.content_type = type;
        EXPECT_EQ(status(guard, head), 415) << type;
    }
    head.content_type = "application/json";
    for (const char* encoding : {"gzip", "br", "identity, gzip", "x"}) {
        head.content_encoding = encoding;
        EXPECT_EQ(status(guard, head), 415) << encoding;
    }
    head.content_encoding = "Identity";
    EXPECT_EQ(status(guard, head), 200);
    head.method = "GET";
    head.content_encoding = "gzip";
    EXPECT_EQ(status(guard, head), 200);
}

}  // namespace
}  // namespace espalier::server
