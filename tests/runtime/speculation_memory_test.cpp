// SPDX-License-Identifier: Apache-2.0
// What speculation has learnt, in a directory: kept, told apart, bounded, and never trusted.
#include "runtime/speculation_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "support/temporary_directory.hpp"

namespace espalier::runtime {
namespace {

namespace fs = std::filesystem;

const SpeculationMemory::Key kKey{.model = "one", .drafters = {"ngram", "mtp"}, .threads = 2};

speculate::Memory some_memory() {
    return {.drafters = {{"mtp", {4, 3.5}, {1, 2, 1e-3}}, {"ngram", {1, 0}, {}}},
            .step_time = {1e-3, 0.25},
            .rates = {12, 30}};
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

TEST(SpeculationMemory, KeepsWhatItIsGivenUntilItIsGivenMore) {
    const TemporaryDirectory directory;
    const SpeculationMemory memory(directory.path() / "made", kKey);
    const auto nothing = memory.load();
    ASSERT_TRUE(nothing);
    EXPECT_EQ(*nothing, speculate::Memory{});
    ASSERT_TRUE(memory.save({}));
    ASSERT_TRUE(memory.save(some_memory()));
    const auto kept = SpeculationMemory(directory.path() / "made", kKey).load();
    ASSERT_TRUE(kept);
    EXPECT_EQ(*kept, some_memory());
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path() / "made"), {}), 1);
}

TEST(SpeculationMemory, AnotherModelDraftMachineOrNumberOfThreadsHasAnother) {
    const TemporaryDirectory directory;
    const auto file = [&](auto change) {
        SpeculationMemory::Key key = kKey;
        change(key);
        return SpeculationMemory(directory.path(), key).file();
    };
    const fs::path own = file([](auto&) {});
    EXPECT_NE(file([](auto& key) { key.model = "two"; }), own);
    EXPECT_NE(file([](auto& key) { key.draft = "two"; }), own);
    EXPECT_NE(file([](auto& key) { key.drafters = {"ngram"}; }), own);
    EXPECT_NE(file([](auto& key) { key.machine = "two"; }), own);
    EXPECT_NE(file([](auto& key) { key.threads = 3; }), own);
    EXPECT_NE(file([](auto& key) { key.identity.kv_format = "fp8_token"; }), own);
}

TEST(SpeculationMemory, ADamagedFileIsAnErrorThatNamesItAndIsWrittenAnew) {
    const TemporaryDirectory directory;
    const SpeculationMemory memory(directory.path(), kKey);
    ASSERT_TRUE(memory.save(some_memory()));
    std::string whole;
    std::getline(std::ifstream(memory.file()), whole);
    const std::string old =
        std::string(whole).replace(whole.find("\"format\":1"), 10, "\"format\":0");
    for (const std::string& text :
         {std::string(), std::string("null"), whole.substr(0, whole.size() / 2), old,
          std::string(R"({"format":1,"drafters":{"mtp":{"acceptance":["x"],"calls":[]}}})"),
          std::string(static_cast<std::size_t>(SpeculationMemory::kMostBytes) + 1, ' ')}) {
        write(memory.file(), text);
        const auto loaded = memory.load();
        ASSERT_FALSE(loaded) << text.substr(0, 80);
        EXPECT_NE(loaded.error().message.find(memory.file().filename().string()), std::string::npos)
            << loaded.error().message;
    }
    ASSERT_TRUE(memory.save(some_memory()));
    EXPECT_TRUE(memory.load());
}

TEST(SpeculationMemory, ADirectoryHoldsNoMoreThanItsLimit) {
    const TemporaryDirectory directory;
    for (std::size_t i = 0; i < SpeculationMemory::kMostFiles + 9; ++i)
        write(directory.path() / (std::to_string(i) + ".json"), "{}");
    write(directory.path() / "note.txt", "not ours");
    const SpeculationMemory memory(directory.path(), kKey);
    ASSERT_TRUE(memory.save(some_memory()));
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}),
              static_cast<std::ptrdiff_t>(SpeculationMemory::kMostFiles) + 1);
    EXPECT_TRUE(memory.load());
    EXPECT_TRUE(fs::exists(directory.path() / "note.txt"));
}

}  // namespace
}  // namespace espalier::runtime
