// SPDX-License-Identifier: Apache-2.0
// Random schemas within what is supported (docs/grammars.md), and a few steps beyond.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace espalier::test {

class SchemaGenerator {
  public:
    using Json = nlohmann::ordered_json;
    explicit SchemaGenerator(std::uint64_t seed) : random_(seed) {}

    Json schema();
    std::string regex() { return regex(2); }

  private:
    Json node(int depth);
    Json leaf();
    Json string();
    Json number();
    Json values();
    Json array(int depth);
    Json object(int depth);
    std::string regex(int depth);
    std::string name();
    std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }

    std::mt19937_64 random_;
    std::vector<std::string> definitions_;
};

}  // namespace espalier::test
