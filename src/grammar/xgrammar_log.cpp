// SPDX-License-Identifier: Apache-2.0
#include "grammar/xgrammar_log.hpp"

#include "base/check.hpp"

namespace espalier::grammar {
namespace {

thread_local LogScope* current_scope = nullptr;

}  // namespace

LogScope::LogScope(std::int64_t work) : work_left_(work) {
    CHECK(current_scope == nullptr, "one grammar is compiled inside another");
    current_scope = this;
}

LogScope::~LogScope() { current_scope = nullptr; }

void LogScope::record(const std::string& warning) {
    if (current_scope != nullptr && !current_scope->warning_) current_scope->warning_ = warning;
}

void LogScope::spend(std::int64_t work) {
    if (current_scope != nullptr && (current_scope->work_left_ -= work) < 0) throw TooMuchWork();
}

}  // namespace espalier::grammar

// The customisation points that XGRAMMAR_LOG_CUSTOMIZE leaves to its user, and the hook that
// third_party/xgrammar puts into its compile loops.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);
void SpendWork(std::int64_t work);

void LogFatalImpl(const std::string&, int, const std::string& message) {
    throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
    constexpr int kWarning = 2;
    if (level >= kWarning) espalier::grammar::LogScope::record(message);
}

void SpendWork(std::int64_t work) { espalier::grammar::LogScope::spend(work); }

}  // namespace xgrammar
