// SPDX-License-Identifier: Apache-2.0
// What the server says on standard error, a line each: text for people or JSON for collectors.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::server {

class Log {
  public:
    enum class Format { text, json };
    enum class Level { debug, info, warning, error };
    struct Field {
        const char* name;
        std::string value;
        bool is_number = false;
    };
    // least: lines below it are not written.
    explicit Log(Format format, std::FILE* out = stderr, Level least = Level::info)
        : format_(format), out_(out), least_(least) {}

    void info(std::string_view message) { write(Level::info, message); }
    void warning(std::string_view message) { write(Level::warning, message); }
    void error(std::string_view message) { write(Level::error, message); }
    // With facts beside the message: `name=value` behind it, or members of the object. A line for
    // which a pipe has no room is left out and counted, so that a log that is not read holds
    // nothing up.
    void write(Level level, std::string_view message, const std::vector<Field>& fields = {});
    bool writes(Level level) const { return level >= least_; }
    // A warning that clients can cause: each one once, and no more than kMaxOnce in all.
    void warn_once(const std::string& message);
    static constexpr std::size_t kMaxOnce = 100;

    // The line without its end. seconds: since 1970. Control characters are escaped, so that what a
    // client sent cannot pass for another line.
    static std::string line(Format format, Level level, std::string_view message,
                            std::int64_t seconds, const std::vector<Field>& fields = {});

  private:
    const Format format_;
    std::FILE* const out_;
    const Level least_;
    std::mutex mutex_;
    std::int64_t lost_ = 0;  // lines since the last one that was written
    std::set<std::string> said_;
};

// Level for one of the words debug, info, warning and error.
Log::Level level_of(std::string_view word);

}  // namespace espalier::server
