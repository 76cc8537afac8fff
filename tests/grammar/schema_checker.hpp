// SPDX-License-Identifier: Apache-2.0
// Whether a text is JSON and valid under a schema, for what docs/grammars.md supports: written
// apart from src/grammar, which it checks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace espalier::test {

// Empty: it is; otherwise what is wrong. strict: as Specification has it.
std::string schema_error(const std::string& text, const nlohmann::ordered_json& schema,
                         bool strict);

}  // namespace espalier::test
