// SPDX-License-Identifier: Apache-2.0
// A build without xgrammar's sources (ESPALIER_GRAMMAR off): structured output is refused by name,
// so no matcher is ever made.
#include "base/check.hpp"
#include "grammar/compiler.hpp"
#include "grammar/matcher.hpp"

namespace espalier::grammar {

bool available() { return false; }

struct CompiledGrammar::Impl {
    Specification specification;
    Vocabulary vocabulary;
};

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
CompiledGrammar::~CompiledGrammar() = default;
const Specification& CompiledGrammar::specification() const { return impl_->specification; }
const Vocabulary& CompiledGrammar::vocabulary() const { return impl_->vocabulary; }
std::size_t CompiledGrammar::bytes() const { return 0; }
std::int64_t CompiledGrammar::work() const { return 0; }

struct Compiler::Impl {
    Vocabulary vocabulary;
};

Compiler::Compiler(Vocabulary vocabulary, CompilerLimits)
    : impl_(std::make_unique<Impl>(Impl{std::move(vocabulary)})) {}
Compiler::~Compiler() = default;
CompilerStatus Compiler::status() const { return {}; }
const Vocabulary& Compiler::vocabulary() const { return impl_->vocabulary; }

Compiled Compiler::compile(const Specification& specification) {
    return fail(ErrorKind::unsupported,
                "{}: this build has no structured output (it was made without xgrammar's sources; "
                "tools/setup.sh run fetches them)",
                name(specification.kind));
}
void Compiler::compile(const Specification& specification, Done done) {
    done(compile(specification));
}
void Compiler::stop() {}

struct Matcher::Impl {
    std::shared_ptr<const CompiledGrammar> grammar;
};

Matcher::Matcher(std::shared_ptr<const CompiledGrammar>, Masks) {
    CHECK(false, "a matcher in a build without grammars");
}
Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;
bool Matcher::accept(TokenId) { return false; }
void Matcher::rollback(std::int64_t) {}
std::int64_t Matcher::accepted() const { return 0; }
void Matcher::fill_mask(std::span<std::uint32_t>) {}
bool Matcher::may_end() const { return false; }
bool Matcher::finished() const { return false; }
std::string Matcher::forced_text() { return {}; }
Matcher Matcher::fork() const { return Matcher(std::unique_ptr<Impl>()); }
const CompiledGrammar& Matcher::grammar() const { return *impl_->grammar; }
std::string_view Matcher::failure() const { return {}; }

}  // namespace espalier::grammar
