// SPDX-License-Identifier: Apache-2.0
// Counts what a render costs against its limits, and how a template fails: inside this folder by
// an exception, so that the evaluator reads like the language it evaluates; Template catches it at
// its border and hands out an Error.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "chat/limits.hpp"

namespace espalier::chat {

struct Failure {
    ErrorKind kind;
    std::string message;
    int line = 0;  // of the template; 0 where it is not known yet
};

template <typename... Args>
[[noreturn]] void fail_template(ErrorKind kind, fmt::format_string<Args...> format,
                                Args&&... args) {
    throw Failure{.kind = kind, .message = fmt::format(format, std::forward<Args>(args)...)};
}

// Runs `work`; a failure that does not know its line gets the one that `line` has by then.
template <typename Work>
auto with_line(const int& line, Work&& work) {
    try {
        return work();
    } catch (Failure& failure) {
        if (failure.line == 0) failure.line = line;
        throw;
    }
}

class Budget {
  public:
    explicit Budget(const Limits& limits) : limits_(limits) {}

    const Limits& limits() const { return limits_; }

    void step(std::size_t count = 1) { take(steps_, count, limits_.steps, "steps"); }
    // Before the bytes are read or written, so that nothing large is made first.
    void touch(std::size_t bytes) {
        take(touched_bytes_, bytes, limits_.touched_bytes, "bytes of text");
    }

  private:
    static void take(std::int64_t& used, std::size_t more, std::int64_t limit, const char* what) {
        if (more > static_cast<std::size_t>(limit - used))
            fail_template(ErrorKind::exhausted, "the template needs more than {} {}", limit, what);
        used += static_cast<std::int64_t>(more);
    }

    Limits limits_;
    std::int64_t steps_ = 0;
    std::int64_t touched_bytes_ = 0;
};

// One level of recursion for as long as it lives.
class DepthGuard {
  public:
    DepthGuard(std::int64_t& depth, std::int64_t limit, const char* what) : depth_(depth) {
        if (depth_ >= limit)
            fail_template(ErrorKind::exhausted, "{} are nested more than {} deep", what, limit);
        ++depth_;
    }
    ~DepthGuard() { --depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

  private:
    std::int64_t& depth_;
};

}  // namespace espalier::chat
