// SPDX-License-Identifier: Apache-2.0
#include "trace/difference.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace espalier::trace {
namespace {

struct Entry {
    std::string path;   // rows[1].q_len
    std::string value;  // as text
    std::string about;  // the request that it belongs to
};

// A struct as a flat list. Made only when two events differ.
class Flattener {
  public:
    explicit Flattener(std::vector<Entry>& out, std::string path = {}, std::string about = {})
        : out_(out), path_(std::move(path)), about_(std::move(about)) {}

    template <typename T>
    void integer(std::string_view name, const T& value, std::int64_t, std::int64_t) {
        if (name == "request") about_ = fmt::format(" (request {})", value);
        add(name, fmt::format("{}", value));
    }
    void word64(std::string_view name, std::uint64_t value) { add(name, fmt::format("{}", value)); }
    void real(std::string_view name, float value) { add(name, fmt::format("{}", value)); }
    void flag(std::string_view name, bool value) { add(name, value ? "true" : "false"); }
    void text(std::string_view name, const std::string& value, std::int64_t = kMaxText) {
        add(name, fmt::format("'{}'", value));
    }
    template <typename Enum, std::size_t count>
    void choice(std::string_view name, Enum value,
                const std::array<std::string_view, count>& words) {
        add(name, std::string(words[static_cast<std::size_t>(value)]));
    }
    void integers(std::string_view name, const std::vector<std::int32_t>& values, std::int64_t,
                  std::int64_t, std::int64_t) {
        for (std::size_t i = 0; i < values.size(); ++i)
            add(fmt::format("{}[{}]", name, i), fmt::format("{}", values[i]));
        add(fmt::format("entries of {}", name), fmt::format("{}", values.size()));
    }
    void texts(std::string_view name, const std::vector<std::string>& values, std::int64_t,
               std::int64_t = kMaxText) {
        for (std::size_t i = 0; i < values.size(); ++i)
            text(fmt::format("{}[{}]", name, i), values[i]);
        add(fmt::format("entries of {}", name), fmt::format("{}", values.size()));
    }
    template <typename T>
    void maybe_integer(std::string_view name, const std::optional<T>& value, std::int64_t,
                       std::int64_t) {
        add(name, value ? fmt::format("{}", *value) : "none");
    }
    void maybe_integers(std::string_view name, const std::vector<std::int32_t>& values,
                        std::int64_t most, std::int64_t lo, std::int64_t hi) {
        integers(name, values, most, lo, hi);
    }
    void maybe_flag(std::string_view name, bool value) { flag(name, value); }
    void maybe_text(std::string_view name, const std::optional<std::string>& value) {
        add(name, value ? fmt::format("'{}'", *value) : "none");
    }
    template <typename T>
    void object(std::string_view name, const T& value) {
        Flattener inner(out_, at(name) + ".", about_);
        T::fields(inner, value);
    }
    template <typename T>
    void maybe_object(std::string_view name, const std::optional<T>& value) {
        if (value)
            object(name, *value);
        else
            add(name, "none");
    }
    template <typename T>
    void objects(std::string_view name, const std::vector<T>& values, std::int64_t) {
        for (std::size_t i = 0; i < values.size(); ++i)
            object(fmt::format("{}[{}]", name, i), values[i]);
        add(fmt::format("entries of {}", name), fmt::format("{}", values.size()));
    }

  private:
    std::string at(std::string_view name) const { return fmt::format("{}{}", path_, name); }
    void add(std::string_view name, std::string value) {
        out_.push_back({at(name), std::move(value), about_});
    }

    std::vector<Entry>& out_;
    std::string path_;
    std::string about_;
};

template <typename T>
std::string first_difference(const T& traced, const T& now) {
    if (traced == now) return {};
    std::vector<Entry> a, b;
    Flattener flat_traced(a), flat_now(b);
    T::fields(flat_traced, traced);
    T::fields(flat_now, now);
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        if (a[i].path == b[i].path && a[i].value == b[i].value) continue;
        if (a[i].path == b[i].path)
            return fmt::format("{}{}: the trace has {}, this run {}", a[i].path, a[i].about,
                               a[i].value, b[i].value);
        // One list is longer: its next entry stands where the other's length is.
        return fmt::format("the trace has {}{} = {}, this run {}{} = {}", a[i].path, a[i].about,
                           a[i].value, b[i].path, b[i].about, b[i].value);
    }
    return "the two differ";  // a float's sign of zero
}

}  // namespace

std::string difference(const Submission& traced, const Submission& now) {
    return first_difference(traced, now);
}
std::string difference(const Step& traced, const Step& now) {
    return first_difference(traced, now);
}

}  // namespace espalier::trace
