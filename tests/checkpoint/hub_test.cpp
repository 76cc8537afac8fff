// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include "checkpoint/model_config.hpp"
#include "checkpoint/support.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

// A hub cache in a temporary directory; the environment is put back afterwards.
class HubTest : public testing::Test {
  protected:
    HubTest() {
        for (const char* variable : kVariables) {
            const char* value = getenv(variable);
            before_[variable] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
            unsetenv(variable);
        }
        set("HF_HUB_CACHE", directory_.path() / "hub");
    }
    ~HubTest() override {
        for (const auto& [variable, value] : before_)
            value ? setenv(variable.c_str(), value->c_str(), 1) : unsetenv(variable.c_str());
    }
    static void set(const char* variable, const fs::path& value) {
        setenv(variable, value.c_str(), 1);
    }

    // A repository whose main is `commit`.
    fs::path add(const fs::path& hub, const std::string& commit = "abc123") {
        const fs::path repository = hub / "models--deepseek-ai--DeepSeek-V2-Lite";
        write_file(repository / "refs" / "main", commit);
        write_file(repository / "snapshots" / commit / "config.json", "{}");
        return repository;
    }

    TemporaryDirectory directory_;

  private:
    static constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                                 "XDG_CACHE_HOME", "HOME"};
    std::map<std::string, std::optional<std::string>> before_;
};

constexpr const char* kModel = "deepseek-ai/DeepSeek-V2-Lite";

TEST_F(HubTest, ADirectoryIsItself) {
    const auto path = resolve_model_path(directory_.path().string());
    ASSERT_TRUE(path);
    EXPECT_EQ(*path, directory_.path());
}

TEST_F(HubTest, MainRevisionAndCommit) {
    const fs::path repository = add(directory_.path() / "hub");
    write_file(repository / "refs" / "pr" / "1", "def456\n");
    write_file(repository / "snapshots" / "def456" / "config.json", "{}");
    for (const auto& [model, commit] :
         std::map<std::string, std::string>{{kModel, "abc123"},
                                            {std::string(kModel) + "@main", "abc123"},
                                            {std::string(kModel) + "@abc123", "abc123"},
                                            {std::string(kModel) + "@pr/1", "def456"},
                                            {std::string(kModel) + "@def456", "def456"}}) {
        const auto path = resolve_model_path(model);
        ASSERT_TRUE(path) << path.error().message;
        EXPECT_EQ(*path, repository / "snapshots" / commit) << model;
    }
}

TEST_F(HubTest, TheCacheIsLookedForWhereTheReferenceLooks) {
    unsetenv("HF_HUB_CACHE");
    set("HOME", directory_.path() / "home");
    const auto expect_in = [](const fs::path& hub) {
        const auto path = resolve_model_path(kModel);
        ASSERT_TRUE(path) << path.error().message;
        EXPECT_EQ(*path, hub / "models--deepseek-ai--DeepSeek-V2-Lite" / "snapshots" / "abc123");
    };
    const fs::path root = directory_.path();
    add(root / "home/.cache/huggingface/hub");
    expect_in(root / "home/.cache/huggingface/hub");
    set("XDG_CACHE_HOME", root / "xdg");
    add(root / "xdg/huggingface/hub");
    expect_in(root / "xdg/huggingface/hub");
    set("HF_HOME", root / "hf");
    add(root / "hf/hub");
    expect_in(root / "hf/hub");
    set("HF_HUB_CACHE", root / "cache");
    add(root / "cache");
    expect_in(root / "cache");
}

TEST_F(HubTest, ErrorsSayWhatWasLookedForAndWhatToDo) {
    expect_error(resolve_model_path(kModel),
                 {kModel, (directory_.path() / "hub").string(),
                  "models--deepseek-ai--DeepSeek-V2-Lite", "espalier pull"});
    const fs::path repository = add(directory_.path() / "hub");
    expect_error(resolve_model_path(std::string(kModel) + "@v9"),
                 {"'v9'", (repository / "refs" / "v9").string(),
                  (repository / "snapshots" / "v9").string()});
    expect_error(resolve_model_path("nowhere"), {"'nowhere'", "ORG/NAME"});
    expect_error(resolve_model_path(""), {"ORG/NAME"});
    write_file(directory_.path() / "file", "x");
    expect_error(resolve_model_path((directory_.path() / "file").string()), {"a file"});
    unsetenv("HF_HUB_CACHE");
    expect_error(resolve_model_path(kModel), {"no hub cache", "HF_HUB_CACHE"});
}

TEST_F(HubTest, NamesCannotLeaveTheCache) {
    const fs::path repository = add(directory_.path() / "hub");
    for (const char* model :
         {"deepseek-ai/..", "../x", "a/b/c", "/a", "a/", "deepseek-ai/DeepSeek-V2-Lite@..",
          "deepseek-ai/DeepSeek-V2-Lite@../../x", "deepseek-ai/DeepSeek-V2-Lite@", "a/b\n"})
        EXPECT_FALSE(resolve_model_path(model)) << model;
    write_file(repository / "refs" / "main", "../../../..");
    expect_error(resolve_model_path(kModel), {"refs/main", "no commit name"});
}

}  // namespace
}  // namespace espalier::checkpoint
