// SPDX-License-Identifier: Apache-2.0
// Which kinds of JSON values a parameter of a function may have, read off its schema: a model that
// writes arguments as pairs of plain text writes strings without quotes, and only the schema says
// whether 5 is one. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace espalier::output {

enum ValueTypes : std::uint8_t {
    kNoValue = 0,
    kStringValue = 1,
    kNumberValue = 2,
    kBooleanValue = 4,
    kNullValue = 8,
    kObjectValue = 16,
    kArrayValue = 32,
    kAnyValue = 63,
};
constexpr ValueTypes operator|(ValueTypes a, ValueTypes b) {
    return static_cast<ValueTypes>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr ValueTypes operator&(ValueTypes a, ValueTypes b) {
    return static_cast<ValueTypes>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}

ValueTypes type_of(const nlohmann::ordered_json& value);

// The schema that a $ref into the root's definitions stands for, or the schema itself; null for one
// that leads nowhere.
const nlohmann::ordered_json* resolved(const nlohmann::ordered_json& schema,
                                       const nlohmann::ordered_json& root);

// The types that a schema allows; all of them where it is not understood.
ValueTypes value_types(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& root);

// value_types() of an object's properties, by name.
std::map<std::string, ValueTypes, std::less<>> property_types(
    const nlohmann::ordered_json& parameters);

}  // namespace espalier::output
