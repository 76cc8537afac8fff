// SPDX-License-Identifier: Apache-2.0
// Writes lines straight into a string: the writer's thread shares the cores with the model, and a
// document object in between would be an allocation per number.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "trace/line.hpp"

namespace espalier::trace {
namespace {

class LineWriter {
  public:
    explicit LineWriter(std::string& out) : out_(out) {}

    template <typename T>
    void integer(std::string_view name, const T& value, std::int64_t, std::int64_t) {
        key(name);
        number(value);
    }
    void word64(std::string_view name, std::uint64_t value) {
        key(name);
        number(value);
    }
    // Numbers that are not finite have no place in JSON: a reader would refuse them.
    void real(std::string_view name, float value) {
        key(name);
        if (std::isfinite(value))
            fmt::format_to(std::back_inserter(out_), "{}", static_cast<double>(value));
        else
            out_ += "null";
    }
    void flag(std::string_view name, bool value) {
        key(name);
        out_ += value ? "true" : "false";
    }
    void text(std::string_view name, const std::string& value, std::int64_t = kMaxText) {
        key(name);
        quoted(value);
    }
    template <typename Enum, std::size_t count>
    void choice(std::string_view name, Enum value,
                const std::array<std::string_view, count>& words) {
        key(name);
        out_ += '"';
        out_ += words[static_cast<std::size_t>(value)];
        out_ += '"';
    }
    void integers(std::string_view name, const std::vector<std::int32_t>& values, std::int64_t,
                  std::int64_t, std::int64_t) {
        key(name);
        list(values, [this](std::int32_t value) { number(value); });
    }
    void texts(std::string_view name, const std::vector<std::string>& values, std::int64_t,
               std::int64_t = kMaxText) {
        key(name);
        list(values, [this](const std::string& value) { quoted(value); });
    }
    template <typename T>
    void maybe_integer(std::string_view name, const std::optional<T>& value, std::int64_t lo,
                       std::int64_t hi) {
        if (value) integer(name, *value, lo, hi);
    }
    // Written where there are any.
    void maybe_integers(std::string_view name, const std::vector<std::int32_t>& values,
                        std::int64_t most, std::int64_t lo, std::int64_t hi) {
        if (!values.empty()) integers(name, values, most, lo, hi);
    }
    // Written where it is not 0.
    void maybe_count(std::string_view name, std::int64_t value, std::int64_t most) {
        if (value != 0) integer(name, value, 1, most);
    }
    // Written where it is set.
    void maybe_flag(std::string_view name, bool value) {
        if (value) flag(name, value);
    }
    void maybe_text(std::string_view name, const std::optional<std::string>& value) {
        if (value) text(name, *value);
    }
    template <typename T>
    void object(std::string_view name, const T& value) {
        key(name);
        whole(value);
    }
    template <typename T>
    void maybe_object(std::string_view name, const std::optional<T>& value) {
        if (value) object(name, *value);
    }
    template <typename T>
    void objects(std::string_view name, const std::vector<T>& values, std::int64_t) {
        key(name);
        list(values, [this](const T& value) { whole(value); });
    }

    template <typename T>
    void line(const T& value) {
        out_ += R"({"kind":")";
        out_ += T::kKind;
        out_ += '"';
        first_ = false;
        T::fields(*this, value);
        out_ += "}\n";
    }

  private:
    void key(std::string_view name) {
        if (!first_) out_ += ',';
        first_ = false;
        out_ += '"';
        out_ += name;
        out_ += "\":";
    }
    template <typename T>
    void number(T value) {
        const fmt::format_int digits(value);
        out_.append(digits.data(), digits.size());
    }
    void quoted(const std::string& value) {
        out_ +=
            nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    template <typename T, typename Write>
    void list(const std::vector<T>& values, Write write) {
        out_ += '[';
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (i > 0) out_ += ',';
            write(values[i]);
        }
        out_ += ']';
    }
    template <typename T>
    void whole(const T& value) {
        out_ += '{';
        first_ = true;
        T::fields(*this, value);
        out_ += '}';
        first_ = false;
    }

    std::string& out_;
    bool first_ = true;
};

}  // namespace

void append_line(std::string& out, const Header& header) { LineWriter(out).line(header); }

void append_line(std::string& out, const Event& event) {
    std::visit([&out](const auto& value) { LineWriter(out).line(value); }, event);
}

}  // namespace espalier::trace
