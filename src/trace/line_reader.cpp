// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.hpp"
#include "trace/first_format.hpp"
#include "trace/line.hpp"

namespace espalier::trace {
namespace {

// Fills a struct from a JSON object. The first thing that is wrong stays; what comes after it is
// not looked at.
class LineReader {
  public:
    LineReader(const nlohmann::json& object, std::string path, Expected<void>& result)
        : object_(object), path_(std::move(path)), result_(result) {}

    template <typename T>
    void integer(std::string_view name, T& value, std::int64_t lo, std::int64_t hi) {
        if (const nlohmann::json* field = take(name)) read_integer(*field, at(name), value, lo, hi);
    }
    void word64(std::string_view name, std::uint64_t& value) {
        const nlohmann::json* field = take(name);
        if (field == nullptr) return;
        if (!field->is_number_unsigned()) return refuse(at(name), "a whole number from 0 on");
        value = field->get<std::uint64_t>();
    }
    void real(std::string_view name, float& value) {
        const nlohmann::json* field = take(name);
        if (field == nullptr) return;
        if (!field->is_number()) return refuse(at(name), "a number");
        const auto number = field->get<double>();
        if (!(std::abs(number) <= std::numeric_limits<float>::max()))
            return refuse(at(name), "a number within the range of a float");
        value = static_cast<float>(number);
    }
    void flag(std::string_view name, bool& value) {
        const nlohmann::json* field = take(name);
        if (field == nullptr) return;
        if (!field->is_boolean()) return refuse(at(name), "true or false");
        value = field->get<bool>();
    }
    void text(std::string_view name, std::string& value, std::int64_t most = kMaxText) {
        if (const nlohmann::json* field = take(name)) read_text(*field, at(name), value, most);
    }
    template <typename Enum, std::size_t count>
    void choice(std::string_view name, Enum& value,
                const std::array<std::string_view, count>& words) {
        const nlohmann::json* field = take(name);
        if (field == nullptr) return;
        if (field->is_string())
            for (std::size_t i = 0; i < count; ++i)
                if (field->get_ref<const std::string&>() == words[i]) {
                    value = static_cast<Enum>(i);
                    return;
                }
        refuse(at(name), fmt::format("one of {}", fmt::join(words, ", ")));
    }
    void integers(std::string_view name, std::vector<std::int32_t>& values, std::int64_t most,
                  std::int64_t lo, std::int64_t hi) {
        list(name, values, most, [&](const auto& field, const std::string& path, auto& value) {
            read_integer(field, path, value, lo, hi);
        });
    }
    void texts(std::string_view name, std::vector<std::string>& values, std::int64_t most,
               std::int64_t most_bytes = kMaxText) {
        list(name, values, most, [&](const auto& field, const std::string& path, auto& value) {
            read_text(field, path, value, most_bytes);
        });
    }
    template <typename T>
    void maybe_integer(std::string_view name, std::optional<T>& value, std::int64_t lo,
                       std::int64_t hi) {
        if (!has(name)) return;
        integer(name, value.emplace(), lo, hi);
    }
    void maybe_integers(std::string_view name, std::vector<std::int32_t>& values, std::int64_t most,
                        std::int64_t lo, std::int64_t hi) {
        values.clear();
        if (has(name)) integers(name, values, most, lo, hi);
    }
    void maybe_count(std::string_view name, std::int64_t& value, std::int64_t most) {
        value = 0;
        if (has(name)) integer(name, value, 1, most);
    }
    void maybe_flag(std::string_view name, bool& value) {
        value = false;
        if (has(name)) flag(name, value);
    }
    void maybe_text(std::string_view name, std::optional<std::string>& value) {
        if (has(name)) text(name, value.emplace());
    }
    template <typename T>
    void object(std::string_view name, T& value) {
        if (const nlohmann::json* field = take(name)) read_object(*field, at(name), value);
    }
    template <typename T>
    void maybe_object(std::string_view name, std::optional<T>& value) {
        if (has(name)) object(name, value.emplace());
    }
    template <typename T>
    void objects(std::string_view name, std::vector<T>& values, std::int64_t most) {
        list(name, values, most, [&](const auto& field, const std::string& path, T& value) {
            read_object(field, path, value);
        });
    }

    template <typename T>
    void whole(T& value) {
        T::fields(*this, value);
        if (result_ && taken_.size() != object_.size()) refuse_unknown();
    }
    void skip(std::string_view name) { take(name); }

  private:
    std::string at(std::string_view name) const {
        return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
    }
    bool has(std::string_view name) const { return object_.find(name) != object_.end(); }
    const nlohmann::json* take(std::string_view name) {
        if (!result_) return nullptr;
        const auto found = object_.find(name);
        if (found == object_.end()) {
            result_ = fail(ErrorKind::invalid, "'{}' is missing", at(name));
            return nullptr;
        }
        taken_.push_back(name);
        return &*found;
    }
    void refuse(const std::string& path, std::string_view wanted) {
        result_ = fail(ErrorKind::invalid, "'{}' is not {}", path, wanted);
    }
    void refuse_unknown() {
        for (const auto& entry : object_.items())
            if (std::find(taken_.begin(), taken_.end(), entry.key()) == taken_.end())
                result_ = fail(ErrorKind::invalid, "'{}' is not a known field",
                               at(entry.key().substr(0, 64)));
    }

    template <typename T>
    void read_integer(const nlohmann::json& field, const std::string& path, T& value,
                      std::int64_t lo, std::int64_t hi) {
        // Unsigned ones beyond 63 bits would turn negative.
        const bool fits = field.is_number_unsigned()
                              ? field.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                              : field.is_number_integer();
        if (!fits) return refuse(path, fmt::format("a whole number within {}…{}", lo, hi));
        const auto number = field.get<std::int64_t>();
        if (number < lo || number > hi) {
            result_ =
                fail(ErrorKind::invalid, "'{}' is {}, not within {}…{}", path, number, lo, hi);
            return;
        }
        value = static_cast<T>(number);
    }
    void read_text(const nlohmann::json& field, const std::string& path, std::string& value,
                   std::int64_t most) {
        if (!field.is_string()) return refuse(path, "a text");
        const auto& text = field.get_ref<const std::string&>();
        if (static_cast<std::int64_t>(text.size()) > most) {
            result_ = fail(ErrorKind::invalid, "'{}' has {} bytes, at most {} are read", path,
                           text.size(), most);
            return;
        }
        value = text;
    }
    template <typename T>
    void read_object(const nlohmann::json& field, const std::string& path, T& value) {
        if (!field.is_object()) return refuse(path, "an object");
        LineReader(field, path, result_).whole(value);
    }
    template <typename T, typename Read>
    void list(std::string_view name, std::vector<T>& values, std::int64_t most, Read read) {
        const nlohmann::json* field = take(name);
        if (field == nullptr) return;
        if (!field->is_array()) return refuse(at(name), "a list");
        if (static_cast<std::int64_t>(field->size()) > most) {
            result_ = fail(ErrorKind::invalid, "'{}' has {} entries, at most {} are read", at(name),
                           field->size(), most);
            return;
        }
        values.resize(field->size());
        for (std::size_t i = 0; i < values.size() && result_; ++i)
            read((*field)[i], fmt::format("{}[{}]", at(name), i), values[i]);
    }

    const nlohmann::json& object_;
    std::string path_;
    Expected<void>& result_;
    std::vector<std::string_view> taken_;
};

Expected<nlohmann::json> parse_object(std::string_view text, std::string_view place) {
    ESPALIER_ASSIGN_OR_RETURN(nlohmann::json object, parse_json(text, place, {8}));
    if (!object.is_object()) return fail(ErrorKind::invalid, "{}: not a JSON object", place);
    const auto kind = object.find("kind");
    if (kind == object.end() || !kind->is_string())
        return fail(ErrorKind::invalid, "{}: 'kind' is missing, or not a text", place);
    return object;
}

template <typename T>
Expected<T> parse_as(const nlohmann::json& object, std::string_view place) {
    T value;
    Expected<void> result;
    LineReader reader(object, "", result);
    reader.skip("kind");
    reader.whole(value);
    if (!result)
        return fail(ErrorKind::invalid, "{}: {}: {}", place, T::kKind, result.error().message);
    return value;
}

template <typename T>
Expected<Event> event_as(const nlohmann::json& object, std::string_view place) {
    ESPALIER_ASSIGN_OR_RETURN(T value, parse_as<T>(object, place));
    return Event(std::move(value));
}

// Kinds and field names in messages are the file's own words: no longer than needed.
std::string kind_of(const nlohmann::json& object) {
    return object["kind"].get_ref<const std::string&>().substr(0, 64);
}

}  // namespace

Expected<Header> parse_header(std::string_view text, std::string_view place) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json object, parse_object(text, place));
    if (kind_of(object) != Header::kKind)
        return fail(ErrorKind::invalid, "{}: a trace begins with its header, not with '{}'", place,
                    kind_of(object));
    // Before anything else: other formats have other fields.
    const auto format = object.find("format");
    if (format != object.end() && format->is_number_integer() && *format == 1) {
        ESPALIER_ASSIGN_OR_RETURN(const HeaderOfFormat1 first,
                                  parse_as<HeaderOfFormat1>(object, place));
        return first.header();
    }
    if (format != object.end() && format->is_number_integer() && *format != kFormat)
        return fail(ErrorKind::unsupported,
                    "{}: the trace has format {}, this build reads 1 and {}", place, format->dump(),
                    kFormat);
    return parse_as<Header>(object, place);
}

Expected<Event> parse_event(std::string_view text, std::string_view place) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json object, parse_object(text, place));
    const std::string kind = kind_of(object);
    if (kind == Submission::kKind) return event_as<Submission>(object, place);
    if (kind == Cancellation::kKind) return event_as<Cancellation>(object, place);
    if (kind == Step::kKind) return event_as<Step>(object, place);
    if (kind == End::kKind) return event_as<End>(object, place);
    return fail(ErrorKind::invalid, "{}: '{}' is not a kind of line", place, kind);
}

}  // namespace espalier::trace
