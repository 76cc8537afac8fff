// SPDX-License-Identifier: Apache-2.0
#include "cli/identity_text.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace espalier::cli {
namespace {

class JsonFields {
  public:
    void text(std::string_view name, const std::string& value) {
        object[std::string(name)] =
            value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
    }
    void integer(std::string_view name, std::int64_t value, std::int64_t, std::int64_t) {
        object[std::string(name)] = value;
    }
    nlohmann::ordered_json object;
};

}  // namespace

std::string identity_text(const TextIdentity& identity) {
    std::string text = "A text is a function of its request and of\n";
    for (const IdentityField& field : listed(identity))
        fmt::format_to(std::back_inserter(text), "  {:<17} {}\n", field.name,
                       field.value.empty() ? "(not read)" : field.value);
    return text;
}

nlohmann::ordered_json identity_json(const TextIdentity& identity) {
    JsonFields fields;
    TextIdentity::fields(fields, identity);
    return fields.object;
}

}  // namespace espalier::cli
