// SPDX-License-Identifier: Apache-2.0
#include "grammar/compile.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <variant>

#include "base/at.hpp"
#include "grammar/endless_rule.hpp"
#include "grammar/xgrammar_log.hpp"
#include "grammar/xgrammar_objects.hpp"

namespace espalier::grammar {
namespace {

// Added tokens get bytes that no UTF-8 has, so that they are legal by their id alone.
xgrammar::TokenizerInfo tokenizer_info(const Vocabulary& vocabulary) {
    std::vector<std::string> tokens;
    tokens.reserve(static_cast<std::size_t>(vocabulary.size()));
    for (TokenId id = 0; id < vocabulary.size(); ++id) tokens.emplace_back(vocabulary.bytes(id));
    for (const TokenId id : vocabulary.added())
        if (!vocabulary.is_stop(id)) at(tokens, id) = fmt::format("\xff{}", id);
    const std::vector<std::int32_t> stop(vocabulary.stop().begin(), vocabulary.stop().end());
    return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW,
                                   static_cast<int>(vocabulary.size()), stop);
}

xgrammar::Grammar converted(const Prepared& prepared, const Specification& specification,
                            const xgrammar::TokenizerInfo& info) {
    switch (prepared.form) {
        case Prepared::Form::schema:
            return xgrammar::Grammar::FromJSONSchema(
                prepared.text, specification.any_whitespace, std::nullopt, std::nullopt,
                /*strict_mode=*/true,
                specification.any_whitespace ? std::optional<int>(kMaxWhitespace) : std::nullopt);
        case Prepared::Form::ebnf:
            return xgrammar::Grammar::FromEBNF(prepared.text);
        case Prepared::Form::structural_tag:
            break;
    }
    auto tag = xgrammar::Grammar::FromStructuralTag(prepared.text, info);
    if (auto* error = std::get_if<xgrammar::StructuralTagError>(&tag))
        std::visit([](const auto& one) { throw std::runtime_error(one.what()); }, *error);
    return std::get<xgrammar::Grammar>(tag);
}

std::vector<TokenId> forbidden_markers(const Vocabulary& vocabulary,
                                       const std::vector<TokenId>& named) {
    std::vector<TokenId> forbidden;
    for (const TokenId id : vocabulary.added())
        if (!vocabulary.is_stop(id) && std::ranges::find(named, id) == named.end())
            forbidden.push_back(id);
    return forbidden;
}

}  // namespace

struct CompileOne::Impl {
    Impl(Vocabulary given, const CompilerLimits& limits)
        : vocabulary(std::move(given)),
          info(tokenizer_info(vocabulary)),
          compiler(info, /*max_threads=*/1, /*cache_enabled=*/false),
          work(limits.work),
          masks(std::make_shared<MaskCache>(limits.mask_bytes)) {
        for (TokenId id = 0; id < vocabulary.size(); ++id)
            longest_token =
                std::max(longest_token, static_cast<std::int32_t>(vocabulary.bytes(id).size()));
    }

    Vocabulary vocabulary;
    xgrammar::TokenizerInfo info;
    // Its own cache is off, and without it a compile touches nothing that is shared.
    mutable xgrammar::GrammarCompiler compiler;
    const std::int64_t work;
    const std::shared_ptr<MaskCache> masks;
    std::int32_t longest_token = 0;
    mutable std::atomic<std::int64_t> serial = 0;
};

CompileOne::CompileOne(Vocabulary vocabulary, const CompilerLimits& limits)
    : impl_(std::make_unique<const Impl>(std::move(vocabulary), limits)) {}
CompileOne::~CompileOne() = default;
const Vocabulary& CompileOne::vocabulary() const { return impl_->vocabulary; }
MaskCounts CompileOne::mask_counts() const { return impl_->masks->counts(); }

Expected<std::shared_ptr<const CompiledGrammar>> CompileOne::operator()(
    const Specification& specification, const Prepared& prepared) const {
    const std::string_view kind = name(specification.kind);
    try {
        const LogScope log(impl_->work);
        const xgrammar::Grammar grammar = converted(prepared, specification, impl_->info);
        if (log.warning()) return fail(ErrorKind::unsupported, "{}: {}", kind, *log.warning());
        if (const auto rule = endless_rule(grammar); rule && prepared.form == Prepared::Form::ebnf)
            return fail(ErrorKind::invalid, "{}: the rule '{}' has no text of finite length", kind,
                        *rule);
        xgrammar::CompiledGrammar compiled = impl_->compiler.CompileGrammar(grammar);
        if (log.warning()) return fail(ErrorKind::unsupported, "{}: {}", kind, *log.warning());
        CompiledGrammar::Impl made{specification, impl_->vocabulary, std::move(compiled)};
        made.bytes = made.compiled.MemorySizeBytes();
        made.work = impl_->work - log.work_left();
        made.forbidden = forbidden_markers(impl_->vocabulary, prepared.named_tokens);
        made.masks = impl_->masks;
        made.serial = ++impl_->serial;
        made.longest_token = impl_->longest_token;
        return std::make_shared<const CompiledGrammar>(
            std::make_unique<const CompiledGrammar::Impl>(std::move(made)));
    } catch (const TooMuchWork&) {
        return fail(ErrorKind::invalid,
                    "{}: its states and the vocabulary make more than {} steps of work, which is "
                    "the limit",
                    kind, impl_->work);
    } catch (const std::exception& error) {
        return fail(ErrorKind::invalid, "{}: {}", kind, error.what());
    }
}

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
CompiledGrammar::~CompiledGrammar() = default;
const Specification& CompiledGrammar::specification() const { return impl_->specification; }
const Vocabulary& CompiledGrammar::vocabulary() const { return impl_->vocabulary; }
std::size_t CompiledGrammar::bytes() const { return impl_->bytes; }
std::int64_t CompiledGrammar::work() const { return impl_->work; }

}  // namespace espalier::grammar
