// SPDX-License-Identifier: Apache-2.0
#include "server/log.hpp"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

namespace espalier::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* name_of(Log::Level level) {
    if (level == Log::Level::info) return "info";
    return level == Log::Level::warning ? "warning" : "error";
}

std::string time_text(std::int64_t seconds) {
    const auto time = static_cast<std::time_t>(seconds);
    std::tm parts{};
    gmtime_r(&time, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

}  // namespace

std::string Log::line(Format format, Level level, std::string_view message, std::int64_t seconds) {
    const OrderedJson text = std::string(message);
    const auto dump = [](const OrderedJson& json) {
        return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    };
    if (format == Format::json)
        return dump({{"time", time_text(seconds)}, {"level", name_of(level)}, {"message", text}});
    std::string plain;
    for (const char c : message) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
            plain += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        else
            plain += c;
    }
    return fmt::format("{} {:<7} {}", time_text(seconds), name_of(level), plain);
}

void Log::write(Level level, std::string_view message) {
    const std::string whole = line(format_, level, message, std::time(nullptr)) + "\n";
    const std::lock_guard lock(mutex_);
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
