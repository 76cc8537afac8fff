// SPDX-License-Identifier: Apache-2.0
#include "server/keys.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace espalier::server {
namespace {

std::string refusal(const std::string& text) {
    const auto parsed = parse_keys(text, "f");
    return parsed ? "accepted" : parsed.error().message;
}

TEST(ParseKeys, TakesLinesOfNamesKeysAndLimits) {
    const auto keys = parse_keys(
        "\n# all\n  alice\tsk-1   tokens=9000000000 requests=3\r\nb.o_b-2 !~#rest\n", "f");
    ASSERT_TRUE(keys) << keys.error().message;
    ASSERT_EQ(keys->size(), 2u);
    EXPECT_EQ((*keys)[0].name, "alice");
    EXPECT_EQ((*keys)[0].secret, "sk-1");
    EXPECT_EQ((*keys)[0].max_requests, 3);
    EXPECT_EQ((*keys)[0].max_tokens, 9'000'000'000);
    EXPECT_EQ((*keys)[1].secret, "!~");
    EXPECT_EQ((*keys)[1].max_requests, 0);
}

TEST(ParseKeys, NamesWhatIsWrongAndNoSecret) {
    EXPECT_EQ(refusal(""), "f: no key");
    EXPECT_EQ(refusal("# alone\n\n"), "f: no key");
    EXPECT_EQ(refusal("a"), "f:1: no key");
    EXPECT_EQ(refusal("a k\nb k"), "f:2: the key of 'a' stands twice");
    EXPECT_EQ(refusal("a k\na l"), "f:2: the name of 'a' stands twice");
    for (const char* wrong : {"a/b k", "\"a\" k", "é k"})
        EXPECT_NE(refusal(wrong).find("f:1: a name"), std::string::npos) << wrong;
    for (const char* wrong :
         {"a k requests", "a k requests=", "a k requests=0", "a k requests=-1", "a k tokens=1e3",
          "a k tokens=99999999999999999999", "a k sk-typo", "a k rate=3"})
        EXPECT_NE(refusal(wrong).find("is neither requests=N nor tokens=N"), std::string::npos)
            << wrong;
    EXPECT_NE(refusal("a sk-\xff\x01").find("printable ASCII"), std::string::npos);
    EXPECT_NE(refusal("a " + std::string(513, 'x')).find("at most 512"), std::string::npos);
    std::string many;
    for (int i = 0; i < 4097; ++i)
        many += "k" + std::to_string(i) + " s" + std::to_string(i) + "\n";
    EXPECT_NE(refusal(many).find("more than 4096 keys"), std::string::npos);
}

// Random bytes are taken or refused, never more.
TEST(ParseKeys, SurvivesAnyBytes) {
    std::uint64_t state = 7;
    for (int round = 0; round < 2000; ++round) {
        std::string text;
        for (int i = 0; i < 60; ++i) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            constexpr std::string_view kBytes = "ab \n\t#=requestokn0129\0\xff\xc3.-";
            text += (state >> 60) == 0 ? static_cast<char>(state >> 32)
                                       : kBytes[(state >> 33) % kBytes.size()];
        }
        if (const auto keys = parse_keys(text, "f")) {
            EXPECT_FALSE(keys->empty());
        }
    }
}

std::shared_ptr<const ApiKey> key(std::int64_t requests, std::int64_t tokens) {
    return std::make_shared<const ApiKey>(ApiKey{.name = "k",
                                                 .secret = "s",
                                                 .max_requests = requests,
                                                 .max_tokens = tokens,
                                                 .tenant = 1,
                                                 .use = std::make_shared<KeyUse>()});
}

TEST(KeyHold, CountsUntilItIsReleased) {
    const auto limited = key(2, 100);
    KeyHold first(limited);
    EXPECT_TRUE(has_room(*limited));
    {
        KeyHold second(limited);
        EXPECT_FALSE(has_room(*limited));
        EXPECT_TRUE(second.add_tokens(60));
        const auto others = first.add_tokens(41);
        ASSERT_FALSE(others);
        EXPECT_EQ(others.error().kind, ErrorKind::exhausted);
        const auto alone = first.add_tokens(101);
        ASSERT_FALSE(alone);
        EXPECT_EQ(alone.error().kind, ErrorKind::invalid);
        EXPECT_TRUE(first.add_tokens(40));
        EXPECT_EQ(limited->use->tokens, 100);
    }
    EXPECT_TRUE(has_room(*limited));
    EXPECT_EQ(limited->use->tokens, 40);
    first.release();
    first.release();
    EXPECT_EQ(limited->use->requests, 0);
    EXPECT_EQ(limited->use->tokens, 0);
    KeyHold none(nullptr);
    EXPECT_TRUE(none.add_tokens(std::int64_t{1} << 60));
}

// Workers add while the I/O thread releases.
TEST(KeyHold, LeavesNothingBehindWhateverTheOrder) {
    const auto limited = key(1000, 1000);
    for (int round = 0; round < 200; ++round) {
        KeyHold hold(limited);
        std::thread worker([&] { (void)hold.add_tokens(7); });
        hold.release();
        worker.join();
    }
    EXPECT_EQ(limited->use->requests, 0);
    EXPECT_EQ(limited->use->tokens, 0);
}

TEST(KeyRing, ComparesWholeSecrets) {
    EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
    for (const char* other : {"", "a", "ab", "abd", "abcabc", "bbc", "abcd"})
        EXPECT_FALSE(equal_in_constant_time("abc", other)) << other;
    EXPECT_FALSE(equal_in_constant_time("", ""));
    EXPECT_FALSE(equal_in_constant_time("", "x"));
}

TEST(KeyRing, GivesEachNameATenantOfItsOwn) {
    const KeyRing ring({"sk-one", "sk-two"});
    EXPECT_EQ(ring.find("sk-one")->tenant, 1u);
    EXPECT_EQ(ring.find("sk-two")->name, "key-2");
    EXPECT_EQ(ring.find("sk-two")->tenant, 2u);
    EXPECT_FALSE(ring.find("sk-thre"));
    EXPECT_FALSE(ring.find(""));
    EXPECT_TRUE(KeyRing({}).empty());
}

}  // namespace
}  // namespace espalier::server
