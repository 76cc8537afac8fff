// SPDX-License-Identifier: Apache-2.0
// What the server says on standard error, a line each: text for people or JSON for collectors.
#pragma once

#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

namespace espalier::server {

class Log {
  public:
    enum class Format { text, json };
    enum class Level { info, warning, error };
    explicit Log(Format format, std::FILE* out = stderr) : format_(format), out_(out) {}

    void info(std::string_view message) { write(Level::info, message); }
    void warning(std::string_view message) { write(Level::warning, message); }
    void error(std::string_view message) { write(Level::error, message); }
    // A warning that clients can cause: each one once, and no more than kMaxOnce in all.
    void warn_once(const std::string& message);
    static constexpr std::size_t kMaxOnce = 100;

    // The line without its end. seconds: since 1970. Control characters are escaped, so that what a
    // client sent cannot pass for another line.
    static std::string line(Format format, Level level, std::string_view message,
                            std::int64_t seconds);

  private:
    void write(Level level, std::string_view message);

    const Format format_;
    std::FILE* const out_;
    std::mutex mutex_;
    std::set<std::string> said_;
};

}  // namespace espalier::server
