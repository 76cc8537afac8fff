// SPDX-License-Identifier: Apache-2.0
#include "grammar/xgrammar_log.hpp"

#include "base/check.hpp"

namespace espalier::grammar {
namespace {

thread_local LogScope* current_scope = nullptr;

}  // namespace

LogScope::LogScope(std::chrono::steady_clock::time_point deadline) : deadline_(deadline) {
    CHECK(current_scope == nullptr, "one grammar is compiled inside another");
    current_scope = this;
}

LogScope::~LogScope() { current_scope = nullptr; }

void LogScope::record(const std::string& warning) {
    if (current_scope != nullptr && !current_scope->warning_) current_scope->warning_ = warning;
}

void LogScope::check_deadline() {
    if (current_scope != nullptr && std::chrono::steady_clock::now() > current_scope->deadline_)
        throw DeadlinePassed();
}

}  // namespace espalier::grammar

// The customisation points that XGRAMMAR_LOG_CUSTOMIZE leaves to its user, and the hook that
// cmake/EspalierGrammar.cmake puts into its compile loops.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);
void CheckDeadline();

void LogFatalImpl(const std::string&, int, const std::string& message) {
    throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
    constexpr int kWarning = 2;
    if (level >= kWarning) espalier::grammar::LogScope::record(message);
}

void CheckDeadline() { espalier::grammar::LogScope::check_deadline(); }

}  // namespace xgrammar
