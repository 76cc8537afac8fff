// SPDX-License-Identifier: Apache-2.0
#include "cli/binary.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "support/paths.hpp"

namespace espalier::test {

const std::string& sapling() {
    static const std::string path = std::string(source_directory()) + "/models/sapling";
    return path;
}

BinaryResult run_binary(const std::string& arguments, const std::string& redirect) {
    const std::string command =
        std::string(ESPALIER_BINARY) + " " + arguments + " " + redirect + " < /dev/null";
    BinaryResult result;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> chunk{};
    while (const std::size_t count = fread(chunk.data(), 1, chunk.size(), pipe))
        result.output.append(chunk.data(), count);
    const int status = pclose(pipe);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
}

nlohmann::json json_of(const std::string& arguments) {
    const BinaryResult result = run_binary(arguments, "2>/dev/null");
    EXPECT_EQ(result.status, 0) << arguments << "\n" << result.output;
    return nlohmann::json::parse(result.output);
}

}  // namespace espalier::test
