// SPDX-License-Identifier: Apache-2.0
#include "server/log.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace espalier::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kLevels[] = {"debug", "info", "warning", "error"};

std::string_view name_of(Log::Level level) { return kLevels[static_cast<std::size_t>(level)]; }

std::string time_text(std::int64_t seconds) {
    const auto time = static_cast<std::time_t>(seconds);
    std::tm parts{};
    gmtime_r(&time, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

std::string without_controls(std::string_view text) {
    std::string plain;
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
            plain += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        else
            plain += c;
    }
    return plain;
}

// A pipe that has room has it for PIPE_BUF bytes at least; files and terminals always have.
bool takes_line(std::FILE* out) {
    pollfd waiting{fileno(out), POLLOUT, 0};
    return ::poll(&waiting, 1, 0) != 0;
}

}  // namespace

Log::Level level_of(std::string_view word) {
    const auto found = std::ranges::find(kLevels, word);
    return found == std::end(kLevels) ? Log::Level::info
                                      : static_cast<Log::Level>(found - std::begin(kLevels));
}

std::string Log::line(Format format, Level level, std::string_view message, std::int64_t seconds,
                      const std::vector<Field>& fields) {
    if (format == Format::json) {
        OrderedJson json = {{"time", time_text(seconds)},
                            {"level", name_of(level)},
                            {"message", std::string(message)}};
        for (const Field& field : fields)
            json[field.name] = field.is_number ? OrderedJson::parse(field.value, nullptr, false)
                                               : OrderedJson(field.value);
        return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    }
    std::string made =
        fmt::format("{} {:<7} {}", time_text(seconds), name_of(level), without_controls(message));
    for (const Field& field : fields)
        made += fmt::format(" {}={}", field.name, without_controls(field.value));
    return made;
}

void Log::write(Level level, std::string_view message, const std::vector<Field>& fields) {
    if (!writes(level)) return;
    const std::int64_t now = std::time(nullptr);
    std::string whole = line(format_, level, message, now, fields) + "\n";
    const std::lock_guard lock(mutex_);
    if (!takes_line(out_)) {
        ++lost_;
        return;
    }
    if (const std::int64_t lost = std::exchange(lost_, 0); lost > 0)
        whole = line(format_, Level::warning,
                     fmt::format("{} lines were lost: the log was not read", lost), now) +
                "\n" + whole;
    std::fwrite(whole.data(), 1, whole.size(), out_);
    std::fflush(out_);
}

void Log::warn_once(const std::string& message) {
    {
        const std::lock_guard lock(mutex_);
        if (said_.size() >= kMaxOnce || !said_.insert(message).second) return;
    }
    warning(message);
}

}  // namespace espalier::server
