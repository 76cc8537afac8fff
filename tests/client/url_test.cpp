// SPDX-License-Identifier: Apache-2.0
#include "client/url.hpp"

#include <gtest/gtest.h>

namespace espalier::client {
namespace {

std::string read(const char* text) {
    const auto url = parse_url(text);
    return url ? url->host + " " + url->port + " '" + url->path + "' " + url->authority() +
                     (url->secure ? " secure" : "")
               : "refused";
}

std::string target(const char* text) {
    const auto read = parse_target(text);
    return read ? read->server.origin() + " " + read->path : "refused";
}

TEST(Url, HasHostPortAndPath) {
    EXPECT_EQ(read("http://127.0.0.1:8000"), "127.0.0.1 8000 '' 127.0.0.1:8000");
    EXPECT_EQ(read("http://host"), "host 80 '' host:80");
    EXPECT_EQ(read("http://host:81/prefix/"), "host 81 '/prefix' host:81");
    EXPECT_EQ(read("http://[::1]:9/"), "::1 9 '' [::1]:9");
    // OpenAI's clients are told it so.
    EXPECT_EQ(read("http://host:81/v1"), "host 81 '' host:81");
    EXPECT_EQ(read("http://host:81/a/v1/"), "host 81 '/a' host:81");
    EXPECT_EQ(read("https://host"), "host 443 '' host:443 secure");
    EXPECT_EQ(read("https://[::1]:81/v1"), "::1 81 '' [::1]:81 secure");
}

TEST(Url, OfARedirectHasItsQuery) {
    EXPECT_EQ(target("https://cdn.example/a/b?x=1&y=%2F@#part"),
              "https://cdn.example:443 /a/b?x=1&y=%2F@");
    EXPECT_EQ(target("http://h:81"), "http://h:81 /");
    EXPECT_EQ(target("http://h?q"), "http://h:80 /?q");
    for (const char* text : {"", "/a", "//h/a", "http://a@h/", "ftp://h/", "http://h/\r\nX: y",
                             "http://h/a b", "https:///a", "http://h:99999/"})
        EXPECT_EQ(target(text), "refused") << text;
}

TEST(Url, RefusesWhatIsNone) {
    for (const char* text :
         {"", "host:80", "https://", "http://", "http://:80", "http://h:x",
          "http://h:", "http://h:0", "http://h:65536", "http://h:8 0", "http://h/\r\nX: 1",
          "http://a@h", "ftp://h", "http://[::1", "http://[]:1", "http://[::1]x", "http://h/?q",
          "http://h#f", "http://h\xc3\xa9"})
        EXPECT_EQ(read(text), "refused") << text;
}

}  // namespace
}  // namespace espalier::client
