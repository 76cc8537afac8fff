// SPDX-License-Identifier: Apache-2.0
#include "grammar/prepare.hpp"

#include <algorithm>

#include "grammar/regex.hpp"
#include "text/utf8.hpp"

namespace espalier::grammar {
namespace {

Expected<Prepared> prepare_choice(const std::vector<std::string>& choices) {
    if (choices.empty()) return fail(ErrorKind::invalid, "choice: there is nothing to choose from");
    if (choices.size() > TextLimits::kChoices)
        return fail(ErrorKind::exhausted, "choice: {} texts, more than the limit of {}",
                    choices.size(), TextLimits::kChoices);
    std::size_t bytes = 0;
    std::string rule = "root ::= ";
    for (const std::string& text : choices) {
        bytes += text.size();
        if (bytes > TextLimits::kChoiceBytes)
            return fail(ErrorKind::exhausted, "choice: more than the limit of {} bytes",
                        TextLimits::kChoiceBytes);
        if (text::valid_utf8_prefix(text) != text.size())
            return fail(ErrorKind::invalid, "choice: a text is not valid UTF-8");
        if (&text != &choices.front()) rule += " | ";
        rule += written_text(text);
    }
    return Prepared{Prepared::Form::ebnf, std::move(rule)};
}

// Walks over the text of a grammar, apart from its strings, classes and comments.
class EbnfScan {
  public:
    explicit EbnfScan(std::string_view text) : text_(text) {}

    Expected<void> run() {
        while (at_ < text_.size()) {
            switch (text_[at_++]) {
                case '"': {
                    ESPALIER_RETURN_IF_ERROR(skip_to('"'));
                    break;
                }
                case '[': {
                    ESPALIER_RETURN_IF_ERROR(skip_class());
                    break;
                }
                case '{': {
                    ESPALIER_RETURN_IF_ERROR(repetition());
                    break;
                }
                case '#':
                    at_ = std::min(text_.find('\n', at_), text_.size());
                    break;
                case '(':
                    ++depth_;
                    break;
                case ')':
                    --depth_;
                    break;
                default:
                    break;
            }
            if (depth_ > TextLimits::kEbnfDepth)
                return fail(ErrorKind::exhausted, "ebnf: parentheses are nested deeper than {}",
                            TextLimits::kEbnfDepth);
        }
        if (written_ > TextLimits::kEbnfWritten)
            return fail(ErrorKind::exhausted, "ebnf: repetitions multiply to more than {}",
                        TextLimits::kEbnfWritten);
        return {};
    }

  private:
    Expected<void> skip_to(char end) {
        while (at_ < text_.size() && text_[at_] != end) at_ += text_[at_] == '\\' ? 2 : 1;
        if (at_ >= text_.size()) return fail(ErrorKind::invalid, "ebnf: '{}' is missing", end);
        ++at_;
        return {};
    }

    // rule[max_tokens=…] ::= counts tokens: what is legal would no longer be a matter of the text.
    Expected<void> skip_class() {
        ESPALIER_RETURN_IF_ERROR(skip_to(']'));
        const std::size_t next = text_.find_first_not_of(" \t\r\n", at_);
        if (next != text_.npos && text_.substr(next).starts_with("::="))
            return fail(ErrorKind::unsupported, "ebnf: attributes of rules are not supported");
        return {};
    }

    Expected<void> repetition() {
        std::int64_t most = 0;
        std::int64_t value = 0;
        for (; at_ < text_.size() && text_[at_] != '}'; ++at_) {
            const char c = text_[at_];
            value = c >= '0' && c <= '9' ? value * 10 + (c - '0') : 0;
            most = std::max(most, value);
            if (most > TextLimits::kEbnfRepeat)
                return fail(ErrorKind::exhausted, "ebnf: a repetition beyond the limit of {}",
                            TextLimits::kEbnfRepeat);
        }
        // Repetitions may stand within each other, through rules: their product is the worst case.
        written_ =
            std::min(written_ * std::max<std::int64_t>(most, 1), TextLimits::kEbnfWritten + 1);
        return {};
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int depth_ = 0;
    std::int64_t written_ = 1;
};

}  // namespace

Expected<void> check_ebnf(std::string_view text) {
    if (text.size() > TextLimits::kEbnfBytes)
        return fail(ErrorKind::exhausted, "ebnf: {} bytes, more than the limit of {}", text.size(),
                    TextLimits::kEbnfBytes);
    if (text::valid_utf8_prefix(text) != text.size() || text.find('\0') != text.npos)
        return fail(ErrorKind::invalid, "ebnf: not valid UTF-8 text");
    return EbnfScan(text).run();
}

Expected<Prepared> prepare(const Specification& specification) {
    switch (specification.kind) {
        case Kind::json_object:
            return Prepared{Prepared::Form::schema, R"({"type":"object"})"};
        case Kind::json_schema: {
            ESPALIER_ASSIGN_OR_RETURN(
                std::string written, rewrite_schema_text(specification.text, specification.strict));
            return Prepared{Prepared::Form::schema, std::move(written)};
        }
        case Kind::regex: {
            auto written = rewrite_regex(specification.text, RegexUse::text);
            if (!written) return fail(written.error().kind, "regex: {}", written.error().message);
            return Prepared{Prepared::Form::ebnf, fmt::format("root ::= {}", *written)};
        }
        case Kind::choice:
            return prepare_choice(specification.choices);
        case Kind::ebnf:
            ESPALIER_RETURN_IF_ERROR(check_ebnf(specification.text));
            return Prepared{Prepared::Form::ebnf, specification.text};
        case Kind::structural_tag:
            return prepare_structural_tag(specification);
    }
    return fail(ErrorKind::invalid, "a specification of no kind");
}

}  // namespace espalier::grammar
