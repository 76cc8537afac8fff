// SPDX-License-Identifier: Apache-2.0
#include "client/url.hpp"

#include <gtest/gtest.h>

namespace espalier::client {
namespace {

std::string read(const char* text) {
    const auto url = parse_url(text);
    return url ? url->host + " " + url->port + " '" + url->path + "' " + url->authority()
               : "refused";
}

TEST(Url, HasHostPortAndPath) {
    EXPECT_EQ(read("http://127.0.0.1:8000"), "127.0.0.1 8000 '' 127.0.0.1:8000");
    EXPECT_EQ(read("http://host"), "host 80 '' host:80");
    EXPECT_EQ(read("http://host:81/prefix/"), "host 81 '/prefix' host:81");
    EXPECT_EQ(read("http://[::1]:9/"), "::1 9 '' [::1]:9");
    // OpenAI's clients are told it so.
    EXPECT_EQ(read("http://host:81/v1"), "host 81 '' host:81");
    EXPECT_EQ(read("http://host:81/a/v1/"), "host 81 '/a' host:81");
}

TEST(Url, RefusesWhatIsNone) {
    for (const char* text :
         {"", "host:80", "https://host", "http://", "http://:80", "http://h:x",
          "http://h:", "http://h:0", "http://h:65536", "http://h:8 0", "http://h/\r\nX: 1",
          "http://a@h", "ftp://h", "http://[::1", "http://[]:1", "http://[::1]x", "http://h/?q",
          "http://h#f", "http://h\xc3\xa9"})
        EXPECT_EQ(read(text), "refused") << text;
}

}  // namespace
}  // namespace espalier::client
