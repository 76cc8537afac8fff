// SPDX-License-Identifier: Apache-2.0
// Flags from the command line, the environment and a file: who wins, and what is refused.
#include "cli/settings.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "cli/settings_file.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::cli {
namespace {

std::string refusal(const std::string& text) {
    const auto parsed = parse_settings(text, "f");
    return parsed ? "accepted" : parsed.error().message;
}

TEST(SettingsFile, TakesStringsNumbersAndLists) {
    const auto parsed = parse_settings(
        "# comment\n\nport = 80  # why\nmax_model_len=4096\r\nhost = \"a#b \\\"c\\\"\"\nname = "
        "'x\\y'\n"
        "  api-key = [ \"k1\", 'k2', three, ]\nflag = true\nnone = []\nlast = -1.5",
        "f");
    ASSERT_TRUE(parsed) << parsed.error().message;
    using Values = std::vector<std::string>;
    const std::pair<const char*, Values> expected[] = {
        {"port", {"80"}},
        {"max-model-len", {"4096"}},
        {"host", {"a#b \"c\""}},
        {"name", {"x\\y"}},
        {"api-key", {"k1", "k2", "three"}},
        {"flag", {"true"}},
        {"none", {}},
        {"last", {"-1.5"}},
    };
    ASSERT_EQ(parsed->size(), std::size(expected));
    for (std::size_t i = 0; i < parsed->size(); ++i) {
        EXPECT_EQ((*parsed)[i].key, expected[i].first);
        EXPECT_EQ((*parsed)[i].values, expected[i].second);
    }
}

TEST(SettingsFile, RefusesWhatItDoesNotRead) {
    for (const char* text : {"port", "= 3", "port =", "port = 1 2", "a = \"open", "a = [1",
                             "a = [1 2]", "a = [,]", "[section]", "a: 3", "a = {x = 1}"})
        EXPECT_TRUE(refusal(text).starts_with("f:1: ")) << text << ": " << refusal(text);
    EXPECT_EQ(refusal("a = 1\nb = 2\na = 3"), "f:3: a is set on line 1 already");
    EXPECT_EQ(refusal(""), "accepted");
}

class Settings : public ::testing::Test {
  protected:
    Settings() {
        command = app.add_subcommand("serve", "");
        command->add_option("--port", port, "Help")->capture_default_str();
        command->add_option("--max-model-len", length, "Help")->capture_default_str();
        command->add_option("--api-key", keys, "Help")->allow_extra_args(false);
        command->add_flag("--reuse", reuse, "Help");
    }
    ~Settings() override {
        for (const char* name : {"ESPALIER_PORT", "ESPALIER_API_KEY", "ESPALIER_REUSE",
                                 "ESPALIER_PROT", "ESPALIER_MAX_MODEL_LEN"})
            unsetenv(name);
    }
    Expected<Sources> apply(const std::string& line, const std::string& file = {}) {
        app.parse("serve " + line);
        const std::string path = (directory.path() / "settings").string();
        std::ofstream(path) << file;
        return apply_settings(*command, file.empty() ? "" : path, ignored);
    }

    TemporaryDirectory directory;
    CLI::App app;
    CLI::App* command = nullptr;
    int port = 1;
    int length = 2;
    std::vector<std::string> keys;
    bool reuse = false;
    std::vector<std::string> ignored;
};

TEST_F(Settings, TheLineWinsThenTheEnvironmentThenTheFile) {
    setenv("ESPALIER_PORT", "20", 1);
    setenv("ESPALIER_API_KEY", "a,b", 1);
    const auto sources =
        apply("--port 10", "port = 30\nmax_model_len = 33\napi-key = \"c\"\nreuse = true");
    ASSERT_TRUE(sources) << sources.error().message;
    EXPECT_EQ(port, 10);
    EXPECT_EQ(length, 33);
    EXPECT_EQ(keys, (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(reuse);
    EXPECT_EQ(*sources, (Sources{{"port", "command line"},
                                 {"max-model-len", "file"},
                                 {"api-key", "environment"},
                                 {"reuse", "file"}}));
    const std::string explained = explain_settings(*command, *sources);
    EXPECT_NE(explained.find("(hidden)"), std::string::npos);
    EXPECT_EQ(explained.find("a, b"), std::string::npos);
}

TEST_F(Settings, UnknownKeysGetAdviceAndUnknownVariablesAreReported) {
    setenv("ESPALIER_PROT", "1", 1);
    const auto sources = apply("", "prot = 30");
    ASSERT_FALSE(sources);
    EXPECT_TRUE(sources.error().message.ends_with(":1: there is no prot; did you mean port?"))
        << sources.error().message;
    EXPECT_EQ(ignored, (std::vector<std::string>{"ESPALIER_PROT is no flag of serve"}));
}

TEST_F(Settings, WrongValuesNameWhereTheyStand) {
    setenv("ESPALIER_MAX_MODEL_LEN", "many", 1);
    auto sources = apply("");
    ASSERT_FALSE(sources);
    EXPECT_TRUE(sources.error().message.starts_with("ESPALIER_MAX_MODEL_LEN: "))
        << sources.error().message;
    unsetenv("ESPALIER_MAX_MODEL_LEN");
    sources = apply("", "\nport = [1, 2]");
    ASSERT_FALSE(sources);
    EXPECT_NE(sources.error().message.find(":2: port takes one value, not 2"), std::string::npos);
}

// A Kubernetes service called espalier sets it in every pod.
TEST_F(Settings, AnAddressInPlaceOfAPortIsLeftAlone) {
    setenv("ESPALIER_PORT", "tcp://10.0.0.7:8000", 1);
    ASSERT_TRUE(apply(""));
    EXPECT_EQ(port, 1);
    EXPECT_EQ(ignored,
              (std::vector<std::string>{
                  "ESPALIER_PORT is a Kubernetes service's address, no setting of serve"}));
}

}  // namespace
}  // namespace espalier::cli
