// SPDX-License-Identifier: Apache-2.0
// Documents state facts that have one source in the code; here they are held to it.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "espalier/version.hpp"
#include "support/paths.hpp"

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
    std::ifstream in(fs::path(espalier::test::source_directory()) / path);
    EXPECT_TRUE(in.good()) << path;
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

std::string output_of(const std::string& arguments) {
    const std::string command = std::string(ESPALIER_BINARY) + " " + arguments + " 2>&1";
    std::string output;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> chunk{};
    while (const std::size_t count = fread(chunk.data(), 1, chunk.size(), pipe))
        output.append(chunk.data(), count);
    pclose(pipe);
    return output;
}

TEST(Documents, FlagsPageIsWhatTheBinaryPrints) {
    EXPECT_EQ(read("docs/flags.md"), output_of("serve --print-flags"));
}

TEST(Documents, MetricsPageIsWhatTheBinaryPrints) {
    EXPECT_EQ(read("docs/metrics.md"), output_of("serve --print-metrics"));
}

TEST(Documents, BinarySaysItsVersion) {
    EXPECT_EQ(output_of("--version"), "espalier " ESPALIER_VERSION "\n");
}

TEST(Documents, ReadmeNamesCommandsThatExist) {
    const std::string makefile = read("Makefile");
    const std::string readme = read("README.md");
    for (const char* target : {"demo", "test", "test-long", "cuda"}) {
        EXPECT_NE(makefile.find(std::string("\n") + target + ":"), std::string::npos) << target;
        EXPECT_NE(readme.find(std::string("make ") + target), std::string::npos) << target;
    }
}

TEST(Documents, EverySourceFileSaysItsLicence) {
    for (const char* folder : {"src", "tests", "include", "examples", "python"}) {
        for (const auto& entry : fs::recursive_directory_iterator(
                 fs::path(espalier::test::source_directory()) / folder)) {
            const std::string extension = entry.path().extension();
            if (extension != ".cpp" && extension != ".hpp" && extension != ".cu" &&
                extension != ".cuh" && extension != ".inc" && extension != ".h" &&
                extension != ".c")
                continue;
            std::ifstream in(entry.path());
            std::string first;
            std::getline(in, first);
            EXPECT_EQ(first, "// SPDX-License-Identifier: Apache-2.0") << entry.path();
        }
    }
}

}  // namespace
