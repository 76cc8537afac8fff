// SPDX-License-Identifier: Apache-2.0
#include "cli/settings_file.hpp"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

namespace espalier::cli {
namespace {

// One line, read from the left.
class SettingLine {
  public:
    explicit SettingLine(std::string_view text) : rest_(text) {}

    void skip_spaces() {
        while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t'))
            rest_.remove_prefix(1);
    }
    bool take(char c) {
        skip_spaces();
        if (rest_.empty() || rest_.front() != c) return false;
        rest_.remove_prefix(1);
        return true;
    }
    bool ended() {
        skip_spaces();
        return rest_.empty() || rest_.front() == '#';
    }
    // Letters, digits and what numbers and names have besides.
    std::string word() {
        skip_spaces();
        std::size_t size = 0;
        while (size < rest_.size() &&
               (std::isalnum(static_cast<unsigned char>(rest_[size])) != 0 ||
                std::string_view("-_.+").find(rest_[size]) != std::string_view::npos))
            ++size;
        std::string made(rest_.substr(0, size));
        rest_.remove_prefix(size);
        return made;
    }
    // "…" with \" and \\, or '…' as it is; none: it does not end.
    std::optional<std::string> quoted() {
        const char quote = rest_.front();
        std::string made;
        for (std::size_t i = 1; i < rest_.size(); ++i) {
            const char c = rest_[i];
            if (c == quote) {
                rest_.remove_prefix(i + 1);
                return made;
            }
            if (c == '\\' && quote == '"' && i + 1 < rest_.size() &&
                (rest_[i + 1] == '"' || rest_[i + 1] == '\\'))
                made += rest_[++i];
            else
                made += c;
        }
        return std::nullopt;
    }
    std::optional<std::string> value() {
        skip_spaces();
        if (rest_.starts_with('"') || rest_.starts_with('\'')) return quoted();
        std::string made = word();
        if (made.empty()) return std::nullopt;
        return made;
    }

  private:
    std::string_view rest_;
};

std::optional<std::vector<std::string>> read_values(SettingLine& line) {
    std::vector<std::string> values;
    if (!line.take('[')) {
        if (auto value = line.value()) values.push_back(std::move(*value));
        return values.empty() ? std::nullopt : std::optional(std::move(values));
    }
    while (!line.take(']')) {
        if (!values.empty() && !line.take(',')) return std::nullopt;
        if (line.take(']')) break;  // behind a last comma
        auto value = line.value();
        if (!value) return std::nullopt;
        values.push_back(std::move(*value));
    }
    return values;
}

}  // namespace

Expected<std::vector<Setting>> parse_settings(std::string_view text, const std::string& name) {
    std::vector<Setting> settings;
    for (int number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view whole = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (whole.ends_with('\r')) whole.remove_suffix(1);
        SettingLine line(whole);
        if (line.ended()) continue;
        Setting setting{.key = line.word(), .values = {}, .line = number};
        std::ranges::replace(setting.key, '_', '-');
        const bool has_value = !setting.key.empty() && line.take('=');
        auto values = has_value ? read_values(line) : std::nullopt;
        if (!values || !line.ended())
            return fail(ErrorKind::invalid,
                        "{}:{}: a line is key = value, with \"text\", a number, true, false or a "
                        "[list] of these",
                        name, number);
        const auto same = [&](const Setting& other) { return other.key == setting.key; };
        if (const auto other = std::ranges::find_if(settings, same); other != settings.end())
            return fail(ErrorKind::invalid, "{}:{}: {} is set on line {} already", name, number,
                        setting.key, other->line);
        setting.values = std::move(*values);
        settings.push_back(std::move(setting));
    }
    return settings;
}

}  // namespace espalier::cli
