// SPDX-License-Identifier: Apache-2.0
// The binary under test, run as a person runs it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace espalier::test {

const std::string& sapling();  // the directory of the shipped model

struct BinaryResult {
    int status = -1;
    std::string output;  // standard output and error
};
BinaryResult run_binary(const std::string& arguments, const std::string& redirect = "2>&1");
// Standard output of the command, which is JSON; it is expected to succeed.
nlohmann::json json_of(const std::string& arguments);

}  // namespace espalier::test
