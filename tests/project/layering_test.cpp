// SPDX-License-Identifier: Apache-2.0
// Dependencies between folders point one way. The table is docs/architecture.md's picture, as data.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "support/paths.hpp"

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"linalg", {"base"}},
    {"mla", {"base", "linalg"}},
    {"conformance", {"base", "linalg", "mla"}},
    {"ops", {"base", "linalg", "mla"}},
    {"checkpoint", {"base"}},
    {"text", {"base"}},
    {"grammar", {"base", "text"}},
    {"output", {"base", "text", "grammar"}},
    {"chat", {"base", "text"}},
    {"cache", {"base", "mla"}},
    {"batch", {"base", "mla", "cache"}},
    {"speculate", {"base"}},
    {"schedule", {"base", "cache"}},
    {"model", {"base", "linalg", "mla", "ops", "checkpoint", "cache", "batch"}},
    {"accept", {"base", "ops", "text", "grammar"}},
    {"draft",
     {"base", "linalg", "mla", "ops", "checkpoint", "cache", "batch", "speculate", "model",
      "accept"}},
    {"engine",
     {"base", "mla", "ops", "text", "grammar", "cache", "batch", "speculate", "schedule", "model",
      "accept"}},
    {"lossless",
     {"base", "linalg", "mla", "ops", "text", "grammar", "cache", "batch", "speculate", "schedule",
      "model", "accept", "engine"}},
    {"trace", {"base", "accept"}},
    {"replay",
     {"base", "ops", "text", "grammar", "cache", "speculate", "schedule", "model", "accept",
      "engine", "trace"}},
    {"runtime",
     {"base", "mla", "ops", "checkpoint", "text", "grammar", "cache", "batch", "speculate",
      "schedule", "model", "draft", "engine", "trace", "replay"}},
    {"server",
     {"base", "ops", "checkpoint", "text", "grammar", "output", "chat", "schedule", "accept",
      "engine", "runtime"}},
    {"client", {"base"}},
    {"load", {"base", "text", "client"}},
    {"cli", {"grammar",    "base",   "linalg", "mla",      "conformance", "ops",
             "checkpoint", "text",   "cache",  "batch",    "speculate",   "schedule",
             "model",      "accept", "engine", "lossless", "trace",       "replay",
             "runtime",    "server", "client", "load"}},
};

TEST(Layering, FoldersIncludeOnlyWhatLiesBelowThem) {
    const fs::path source = fs::path(espalier::test::source_directory()) / "src";
    const std::regex include("^\\s*#\\s*include\\s+\"([a-z_]+)/[^\"]+\"");
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(source)) {
        const std::string extension = entry.path().extension();
        if (extension != ".cpp" && extension != ".hpp" && extension != ".cu" &&
            extension != ".cuh" && extension != ".inc")
            continue;
        ++files;
        const std::string folder = fs::relative(entry.path(), source).begin()->string();
        ASSERT_TRUE(kMayInclude.count(folder))
            << folder << " is not in the picture of docs/architecture.md";
        std::ifstream in(entry.path());
        for (std::string line; std::getline(in, line);) {
            std::smatch match;
            if (!std::regex_search(line, match, include)) continue;
            const std::string other = match[1];
            if (other == folder || other == "espalier") continue;
            EXPECT_TRUE(kMayInclude.at(folder).count(other)) << entry.path() << ": " << line;
        }
    }
    EXPECT_GT(files, 30);
}

}  // namespace
