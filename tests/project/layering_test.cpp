// SPDX-License-Identifier: Apache-2.0
// Dependencies between folders point one way: what a folder of src includes is what the table of
// docs/architecture.md says of it, and every row speaks of rows above it alone.
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

using Folders = std::set<std::string>;

const fs::path kRoot = espalier::test::source_directory();

// The rows "| `folder` | folder, folder |" by folder.
std::map<std::string, Folders> table() {
    const std::regex row("^\\| `([a-z_]+)` \\| ([a-z_, ]+) \\|$"), name("[a-z_]+");
    std::map<std::string, Folders> rows;
    Folders above;
    std::ifstream page(kRoot / "docs/architecture.md");
    bool found = false;
    for (std::string line; std::getline(page, line);) {
        std::smatch match;
        if (line == "| folder | includes |") found = true;
        if (!found || !std::regex_match(line, match, row)) continue;
        const std::string list = match[2] == "nothing" ? "" : match[2].str();
        Folders& folders = rows[match[1]];
        for (std::sregex_iterator it(list.begin(), list.end(), name), end; it != end; ++it)
            folders.insert(it->str());
        for (const std::string& folder : folders)
            EXPECT_TRUE(above.count(folder)) << match[1] << ": " << folder << " is not above it";
        above.insert(match[1]);
    }
    return rows;
}

// Folders that the sources of each folder include.
std::map<std::string, Folders> included() {
    const fs::path source = kRoot / "src";
    const std::regex include("^\\s*#\\s*include\\s+\"([a-z_]+)/[^\"]+\"");
    const Folders code{".cpp", ".hpp", ".cu", ".cuh", ".inc"};
    std::map<std::string, Folders> folders;
    for (const auto& entry : fs::recursive_directory_iterator(source)) {
        if (!code.count(entry.path().extension())) continue;
        const std::string folder = fs::relative(entry.path(), source).begin()->string();
        Folders& others = folders[folder];
        std::ifstream in(entry.path());
        for (std::string line; std::getline(in, line);) {
            std::smatch match;
            if (!std::regex_search(line, match, include)) continue;
            if (match[1] != folder && match[1] != "espalier") others.insert(match[1]);
        }
    }
    return folders;
}

std::string list(const Folders& folders) {
    std::string text;
    for (const std::string& folder : folders) text += (text.empty() ? "" : ", ") + folder;
    return text;
}

TEST(Layering, FoldersIncludeWhatTheArchitecturePageSays) {
    const auto rows = table(), sources = included();
    EXPECT_GT(rows.size(), 20u);
    for (const auto& [folder, others] : sources) {
        ASSERT_TRUE(rows.count(folder)) << folder << " is not in the table";
        EXPECT_EQ(list(rows.at(folder)), list(others)) << folder;
    }
    for (const auto& [folder, others] : rows)
        EXPECT_TRUE(sources.count(folder)) << folder << " is in the table alone";
}

// Folders of src that the map of the page has a line for: "  name/  …" below "src/".
Folders mapped() {
    const std::regex line_of("^  ([a-z_]+)/ .*");
    Folders folders;
    std::ifstream page(kRoot / "docs/architecture.md");
    bool within = false;
    for (std::string line; std::getline(page, line);) {
        if (!line.empty() && line[0] != ' ') within = line == "src/";
        std::smatch match;
        if (within && std::regex_match(line, match, line_of)) folders.insert(match[1]);
    }
    return folders;
}

TEST(Layering, TheMapHasEveryFolder) {
    Folders folders;
    for (const auto& entry : fs::directory_iterator(kRoot / "src"))
        if (entry.is_directory()) folders.insert(entry.path().filename().string());
    EXPECT_EQ(list(mapped()), list(folders));
}

}  // namespace
