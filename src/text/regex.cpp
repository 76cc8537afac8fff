// SPDX-License-Identifier: Apache-2.0
#include "text/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

namespace espalier::text {
namespace {

// A pattern comes from a file and the text from a user; neither may cost more than this.
constexpr std::size_t kMaxPatternBytes = 16384;
constexpr std::uint32_t kMaxNesting = 32;
// Backtracking steps from one start. A greedy run that has to be given back costs one per
// character; the published patterns need at most two passes of that, an exponential pattern runs
// out in well under a second per megabyte.
constexpr std::uint64_t kMatchSteps = 1'000'000;
constexpr std::uint64_t kMatchStepsPerByte = 8;
constexpr std::uint32_t kHeapLimitKib = 256 * 1024;  // the interpreter's backtracking memory
constexpr std::size_t kJitStackBytes = 256u << 20;   // address space; pages are taken when touched

template <auto Free>
struct Deleter {
    template <typename T>
    void operator()(T* pointer) const {
        Free(pointer);
    }
};
using CodePointer = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;

// What a match writes to. One per thread: a Regex is shared by threads and must not allocate per
// match.
struct Scratch {
    std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data{
        pcre2_match_data_create(1, nullptr)};
    std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context{
        pcre2_match_context_create(nullptr)};
    std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> stack{
        pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)};

    Scratch() {
        if (!context) return;
        pcre2_set_heap_limit(context.get(), kHeapLimitKib);
        // Without a stack (no memory for it) PCRE2 uses 32 KiB of its own and reports when that is
        // too small.
        if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    }
};

std::string message_of(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Code {
    CodePointer compiled;
    std::string name;
};

Expected<Regex> Regex::compile(std::string_view pattern, RegexDialect dialect,
                               std::string_view name) {
    if (pattern.size() > kMaxPatternBytes)
        return fail(ErrorKind::exhausted, "{}: a pattern of {} bytes, more than the limit of {}",
                    name, pattern.size(), kMaxPatternBytes);
    ESPALIER_ASSIGN_OR_RETURN(const std::string translated, to_pcre2(pattern, dialect, name));
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context) return fail(ErrorKind::exhausted, "{}: no memory to compile a pattern", name);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
    const std::uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
        (dialect == RegexDialect::oniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY);
    int error = 0;
    std::size_t error_at = 0;
    auto code = std::make_shared<Code>();
    code->name = name;
    code->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                       translated.size(), options, &error, &error_at,
                                       context.get()));
    if (!code->compiled)
        return fail(ErrorKind::invalid, "{}: the pattern fails to compile at byte {} of '{}': {}",
                    name, error_at, translated, message_of(error));
    std::uint32_t matches_empty = 0;
    pcre2_pattern_info(code->compiled.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0)
        return fail(ErrorKind::unsupported, "{}: the pattern '{}' can match the empty string", name,
                    pattern);
    // A system that forbids run-time code makes PCRE2 interpret instead: slower, the same matches.
    pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE);
    return Regex(std::move(code));
}

Expected<std::optional<Regex::Match>> Regex::find(std::string_view subject,
                                                  std::size_t from) const {
    static thread_local const Scratch scratch;
    if (!scratch.data || !scratch.context)
        return fail(ErrorKind::exhausted, "{}: no memory to match a pattern", code_->name);
    const std::uint64_t steps = kMatchSteps + kMatchStepsPerByte * (subject.size() - from);
    pcre2_set_match_limit(scratch.context.get(),
                          static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, ~0u)));
    const int result = pcre2_match(
        code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
        PCRE2_NO_UTF_CHECK, scratch.data.get(), scratch.context.get());
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result < 0)
        return fail(ErrorKind::exhausted, "{}: the pattern gave up on {} bytes of text: {}",
                    code_->name, subject.size() - from, message_of(result));
    const std::size_t* bounds = pcre2_get_ovector_pointer(scratch.data.get());
    if (bounds[1] <= bounds[0])  // a look-behind can begin a match at its end
        return fail(ErrorKind::unsupported, "{}: the pattern matched the empty string",
                    code_->name);
    return Match{bounds[0], bounds[1]};
}

}  // namespace espalier::text
