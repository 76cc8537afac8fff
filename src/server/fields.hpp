// SPDX-License-Identifier: Apache-2.0
// Reads the fields of a JSON object into typed values, each range-checked here and nowhere else. A
// field that is absent or null leaves its value as it is. The first field at fault is kept, by its
// path in the request ("messages[2].content"); reads after it do nothing, so a caller asks once.
//
// The same readers describe what they read: run over Fields::describing(), which has no field, they
// leave a JSON Schema of names, types and ranges. /openapi.json is made of these.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace espalier::server {

// "an object", "a string" …: what a value is, for messages.
const char* json_kind(const nlohmann::json& value);

// Numbers as JSON writes them: 3, and 3.0 where an integer is wanted.
std::optional<std::int64_t> as_integer(const nlohmann::json& value);

class Fields {
  public:
    // path: of the object in the request; empty for the body.
    explicit Fields(const nlohmann::json& object, std::string path = {});
    // An object without fields; what is asked of it is added to the schema, which outlives it.
    static Fields describing(nlohmann::json& schema);
    bool describes() const { return schema_ != nullptr; }

    void read(const char* name, bool& value);
    void read(const char* name, std::string& value);
    // Numbers that a float holds; what is in range the reader of the value says.
    void read(const char* name, float& value);
    void read(const char* name, std::int64_t& value, std::int64_t least, std::int64_t most);
    void read(const char* name, std::int32_t& value, std::int32_t least, std::int32_t most);
    void read(const char* name, std::vector<std::int32_t>& value, std::size_t most);
    // One string or a list of them.
    void read_strings(const char* name, std::vector<std::string>& value, std::size_t most);

    // The field as it is; null: absent or null.
    const nlohmann::json* find(const char* name);
    bool has(const char* name) { return find(name) != nullptr; }
    // It is a fault if the field is missing.
    void require(const char* name);
    // One of these words. Another one is a fault of the kind `other`.
    void read_word(const char* name, std::string& value, std::span<const char* const> words,
                   ErrorKind other = ErrorKind::invalid);
    // The object in this field, whose first fault the caller adopts; nothing: absent or null.
    std::optional<Fields> object(const char* name);
    // read(entry, index) for each object of the list in this field.
    void each(const char* name, const std::function<void(Fields&, std::size_t)>& read);
    // A detail of the field's schema that no reader above states. For one of several types these
    // are all of it.
    void describe(const char* name, nlohmann::json detail);
    // Known, and without a meaning here.
    void ignore(std::span<const char* const> names);
    void fail_at(const std::string& name, std::string sentence,
                 ErrorKind kind = ErrorKind::invalid);
    // The first fault of an object inside this one.
    void adopt(const Fields& inner);
    std::string path_of(std::string_view name) const;

    bool ok() const { return !error_; }
    // The first fault.
    Expected<void> result() const;
    // Fields that were not asked for.
    std::vector<std::string> unknown() const;

  private:
    // The field's schema; null: nothing is described.
    nlohmann::json* property(const char* name);
    template <typename Number>
    void read_integer(const char* name, Number& value, std::int64_t least, std::int64_t most);

    const nlohmann::json* object_;
    std::string path_;
    nlohmann::json* schema_ = nullptr;
    std::set<std::string, std::less<>> asked_;
    std::optional<Error> error_;
};

}  // namespace espalier::server
