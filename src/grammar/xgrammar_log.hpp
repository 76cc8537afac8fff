// SPDX-License-Identifier: Apache-2.0
// What xgrammar would print, and where its compile loops stop. It warns about what it is going to
// ignore; under a LogScope the first warning is kept, so that the specification can be refused with
// it. Outside one (matchers) messages are dropped.
//
// Work is counted in bytes of tokens that were tried at a state of the grammar, so what is refused
// depends on specification and vocabulary, not on the machine or on what else it does.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace espalier::grammar {

class TooMuchWork : public std::runtime_error {
  public:
    TooMuchWork() : std::runtime_error("too much work") {}
};

class LogScope {
  public:
    explicit LogScope(std::int64_t work);
    ~LogScope();
    LogScope(const LogScope&) = delete;
    LogScope& operator=(const LogScope&) = delete;
    const std::optional<std::string>& warning() const { return warning_; }

    // Both act on the calling thread's scope, if it has one.
    static void record(const std::string& warning);
    static void spend(std::int64_t work);
    std::int64_t work_left() const { return work_left_; }

  private:
    std::int64_t work_left_;
    std::optional<std::string> warning_;
};

}  // namespace espalier::grammar
