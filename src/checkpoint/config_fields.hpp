// SPDX-License-Identifier: Apache-2.0
// Typed, range-checked access to one JSON object. The first problem sticks: readers run straight
// through and ask status() once, instead of testing thirty fields one by one. For .cpp files of
// this folder only.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace espalier::checkpoint {

class ConfigFields {
  public:
    // `place` opens every message: "config.json" or "config.json: text_config".
    ConfigFields(const nlohmann::json& object, std::string place)
        : object_(object), place_(std::move(place)) {
        if (!object_.is_object()) refuse(ErrorKind::invalid, "not a JSON object");
    }

    // Present and not null.
    bool has(const char* key) const { return find(key) != nullptr; }

    // Present, null or not.
    bool contains(const char* key) const { return object_.is_object() && object_.contains(key); }
    // Present and null: the published classes give some fields a default other than null.
    bool is_null(const char* key) const { return contains(key) && !has(key); }

    // An absent (or null) field takes `absent`; without one it is an error.
    std::int64_t integer(const char* key, std::int64_t low, std::int64_t high,
                         std::optional<std::int64_t> absent = std::nullopt) {
        const nlohmann::json* value = find(key);
        if (value == nullptr) return absent ? *absent : missing<std::int64_t>(key);
        return integer_of(*value, key, low, high);
    }

    double number(const char* key, double low, double high,
                  std::optional<double> absent = std::nullopt) {
        const nlohmann::json* value = find(key);
        if (value == nullptr) return absent ? *absent : missing<double>(key);
        if (!value->is_number())
            return refuse_as(0.0, ErrorKind::invalid, "{} is {}, expected a number", key,
                             shown(*value));
        const double result = value->get<double>();
        if (!(result >= low && result <= high))
            return refuse_as(0.0, ErrorKind::invalid, "{} is {}, expected {} to {}", key,
                             shown(*value), low, high);
        return result;
    }

    bool boolean(const char* key, bool absent) {
        const nlohmann::json* value = find(key);
        if (value == nullptr) return absent;
        if (!value->is_boolean())
            return refuse_as(absent, ErrorKind::invalid, "{} is {}, expected true or false", key,
                             shown(*value));
        return value->get<bool>();
    }

    std::string text(const char* key, std::string_view absent) {
        const nlohmann::json* value = find(key);
        if (value == nullptr) return std::string(absent);
        if (!value->is_string())
            return refuse_as(std::string(absent), ErrorKind::invalid, "{} is {}, expected a string",
                             key, shown(*value));
        return value->get<std::string>();
    }

    // A token id or a list of them; nothing when absent.
    std::vector<std::int32_t> token_ids(const char* key, std::int64_t vocabulary) {
        std::vector<std::int32_t> ids;
        const nlohmann::json* value = find(key);
        if (value == nullptr) return ids;
        if (!value->is_array()) {
            ids.push_back(static_cast<std::int32_t>(integer_of(*value, key, 0, vocabulary - 1)));
            return ids;
        }
        if (value->size() > 1024)
            return refuse_as(ids, ErrorKind::invalid, "{} lists {} tokens, the limit is 1024", key,
                             value->size());
        for (const nlohmann::json& id : *value)
            ids.push_back(static_cast<std::int32_t>(integer_of(id, key, 0, vocabulary - 1)));
        return ids;
    }

    // The object under key, or null when absent.
    const nlohmann::json* object(const char* key) {
        const nlohmann::json* value = find(key);
        if (value != nullptr && !value->is_object())
            return refuse_as<const nlohmann::json*>(
                nullptr, ErrorKind::invalid, "{} is {}, expected an object", key, shown(*value));
        return value;
    }

    const nlohmann::json* find(const char* key) const {
        if (!object_.is_object()) return nullptr;
        const auto found = object_.find(key);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }

    template <typename... Args>
    void refuse(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
        if (error_) return;
        error_ = Error{
            kind, fmt::format("{}: {}", place_, fmt::format(format, std::forward<Args>(args)...))};
    }

    // Takes over the first error of a reader for a nested object.
    void absorb(ConfigFields& inner) {
        if (!error_) error_ = std::move(inner.error_);
    }

    const std::string& place() const { return place_; }
    bool ok() const { return !error_; }
    Expected<void> status() const {
        if (error_) return tl::unexpected<Error>(*error_);
        return {};
    }

    // A value for a message, cut short. Invalid UTF-8 cannot occur: the parser refuses it.
    static std::string shown(const nlohmann::json& value) {
        if (value.is_structured()) return value.is_array() ? "a list" : "an object";
        std::string text = value.dump();
        if (text.size() > 60) text = text.substr(0, 57) + "...";
        return text;
    }

  private:
    std::int64_t integer_of(const nlohmann::json& value, const char* key, std::int64_t low,
                            std::int64_t high) {
        const bool fits = value.is_number_integer() &&
                          !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
        if (!value.is_number_integer())
            return refuse_as(low, ErrorKind::invalid, "{} is {}, expected an integer", key,
                             shown(value));
        if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
            return refuse_as(low, ErrorKind::invalid, "{} is {}, expected {} to {}", key,
                             shown(value), low, high);
        return value.get<std::int64_t>();
    }

    template <typename T>
    T missing(const char* key) {
        return refuse_as(T{}, ErrorKind::not_found, "{} is missing", key);
    }

    template <typename T, typename... Args>
    T refuse_as(T result, ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
        refuse(kind, format, std::forward<Args>(args)...);
        return result;
    }

    const nlohmann::json& object_;
    std::string place_;
    std::optional<Error> error_;
};

}  // namespace espalier::checkpoint
