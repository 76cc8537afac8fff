// SPDX-License-Identifier: Apache-2.0
// What xgrammar would print, and where its compile loops stop. It warns about what it is going to
// ignore; under a LogScope the first warning is kept, so that the specification can be refused with
// it. Outside one (matchers) messages are dropped.
#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

namespace espalier::grammar {

class DeadlinePassed : public std::runtime_error {
  public:
    DeadlinePassed() : std::runtime_error("the time limit has passed") {}
};

class LogScope {
  public:
    explicit LogScope(std::chrono::steady_clock::time_point deadline);
    ~LogScope();
    LogScope(const LogScope&) = delete;
    LogScope& operator=(const LogScope&) = delete;
    const std::optional<std::string>& warning() const { return warning_; }

    // Of this thread's scope, if it has one.
    static void record(const std::string& warning);
    static void check_deadline();

  private:
    std::chrono::steady_clock::time_point deadline_;
    std::optional<std::string> warning_;
};

}  // namespace espalier::grammar
