// SPDX-License-Identifier: Apache-2.0
// Translates a published pre-tokenizer pattern to PCRE2. A list of what is allowed, not of what is
// forbidden: PCRE2 accepts most of what it reads differently (\h, {,3}, nested classes) without a
// word.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/regex.hpp"
#include "text/utf8.hpp"

namespace espalier::text {
namespace {

constexpr int kMaxRepeat = 1000;

// Properties that the stand-ins keep (unicode_stand_ins.hpp).
constexpr std::array kProperties = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                    "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                    "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                    "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Han"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translator {
  public:
    Translator(std::string_view pattern, RegexDialect dialect, std::string_view name)
        : pattern_(pattern), dialect_(dialect), name_(name) {}

    Expected<std::string> run() {
        while (at_ < pattern_.size()) {
            switch (pattern_[at_]) {
                case '\\':
                    ESPALIER_RETURN_IF_ERROR(escape());
                    break;
                case '[':
                    ESPALIER_RETURN_IF_ERROR(char_class());
                    break;
                case '(':
                    ESPALIER_RETURN_IF_ERROR(group());
                    break;
                case '{':
                    ESPALIER_RETURN_IF_ERROR(repeat());
                    break;
                default:
                    out_.push_back(pattern_[at_++]);
            }
        }
        return std::move(out_);
    }

  private:
    bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

    void take(std::size_t bytes) {
        out_.append(pattern_.substr(at_, bytes));
        at_ += bytes;
    }

    tl::unexpected<Error> refuse(std::string_view what, std::size_t bytes) const {
        // Cut at a whole code point, for the message must be valid UTF-8 as well.
        std::string_view shown = pattern_.substr(at_, bytes);
        shown = shown.substr(0, valid_utf8_prefix(shown));
        return fail(ErrorKind::unsupported,
                    "{}: {} '{}' at byte {} of the pattern is not supported", name_, what, shown,
                    at_);
    }

    Expected<void> escape() {
        if (at_ + 1 == pattern_.size()) return refuse("a final backslash", 1);
        const char kind = pattern_[at_ + 1];
        if (kind == 'p' || kind == 'P') return property();
        if (kind == 'x') return hex();
        if (std::string_view("sSdDrntf").find(kind) == std::string_view::npos &&
            (is_letter(kind) || is_digit(kind) || static_cast<unsigned char>(kind) >= 0x80))
            return refuse("the escape", 2);
        take(2);
        return {};
    }

    Expected<void> property() {
        const std::size_t close = pattern_.find('}', at_);
        if (pattern_.substr(at_ + 2, 1) != "{" || close == std::string_view::npos)
            return refuse("the escape", 3);
        const std::string_view property_name = pattern_.substr(at_ + 3, close - at_ - 3);
        if (std::ranges::find(kProperties, property_name) == kProperties.end())
            return refuse("the property", std::min<std::size_t>(close - at_ + 1, 40));
        if (property_name ==
            "Han") {  // to PCRE2, {Han} is Script_Extensions: "、" and 100 more belong to it
            out_.append(pattern_.substr(at_, 2)).append("{sc:Han}");
            at_ = close + 1;
            return {};
        }
        take(close - at_ + 1);
        return {};
    }

    Expected<void> hex() {
        std::size_t end = at_ + 2;
        const bool braces = pattern_.substr(end, 1) == "{";
        if (braces) ++end;
        const std::size_t digits = end;
        while (end < pattern_.size() && is_hex(pattern_[end]) && end - digits < (braces ? 6u : 2u))
            ++end;
        const std::size_t count = end - digits;
        // \xHH from 80 up is a byte to Oniguruma and a code point to the others.
        const bool ascii = count == 2 && pattern_[digits] < '8';
        if (braces ? count == 0 || pattern_.substr(end, 1) != "}" : !ascii)
            return refuse("the escape", 4);
        take(end - at_ + (braces ? 1 : 0));
        return {};
    }

    Expected<void> group() {
        if (next_is("(*")) return refuse("the group", 4);
        if (next_is("(?i:")) return caseless();
        for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
            if (next_is(kind)) {
                take(kind.size());
                return {};
            }
        if (next_is("(?")) return refuse("the group", 4);
        out_.append("(?:");  // matches are used whole, never by group
        ++at_;
        return {};
    }

    // Only plain ASCII alternatives: for anything else, case folding differs between engines.
    Expected<void> caseless() {
        const std::size_t close = pattern_.find(')', at_);
        if (close == std::string_view::npos) return refuse("the unclosed group", 4);
        const std::string_view inside = pattern_.substr(at_ + 4, close - at_ - 4);
        if (!std::ranges::all_of(inside,
                                 [](char c) { return is_letter(c) || c == '\'' || c == '|'; }))
            return refuse("the group", 4);
        take(close - at_ + 1);
        return {};
    }

    Expected<void> repeat() {
        std::size_t end = at_ + 1;
        int numbers = 0;
        bool comma = false;
        while (end < pattern_.size() &&
               (is_digit(pattern_[end]) || (pattern_[end] == ',' && !comma))) {
            if (pattern_[end] == ',') {
                if (numbers == 0) break;
                comma = true;
                ++end;
                continue;
            }
            int value = 0;
            for (; end < pattern_.size() && is_digit(pattern_[end]) && value <= kMaxRepeat; ++end)
                value = value * 10 + (pattern_[end] - '0');
            if (value > kMaxRepeat) return refuse("the repeat count", end - at_);
            ++numbers;
        }
        if (numbers == 0 || end == pattern_.size() || pattern_[end] != '}')
            return refuse("the brace", 4);
        ++end;
        // "{2}+" and "{2}?" mean three different things in three engines.
        if (end < pattern_.size() &&
            std::string_view("+?*").find(pattern_[end]) != std::string_view::npos)
            return refuse("the repeat", end - at_ + 1);
        take(end - at_);
        return {};
    }

    // [A] as it stands; [A&&[^B]] as (?:(?![B])[A]); [A&&[B]] as (?:(?=[B])[A]).
    Expected<void> char_class() {
        const std::size_t begin = out_.size();
        const bool negated = next_is("[^");
        ESPALIER_RETURN_IF_ERROR(class_items());
        if (!next_is("&&[")) {
            if (!next_is("]")) return refuse("the class operator", 3);
            take(1);
            return {};
        }
        if (negated) return refuse("an intersection in a negated class", 3);
        const std::string left = out_.substr(begin) + "]";
        out_.resize(begin);
        at_ += 2;
        const bool subtract = next_is("[^");
        ESPALIER_RETURN_IF_ERROR(class_items());
        if (!next_is("]]")) return refuse("the class operator", 3);
        at_ += 2;
        std::string right = out_.substr(begin) + "]";
        if (subtract) right.erase(1, 1);
        out_.resize(begin);
        out_ += fmt::format("(?:({}{}){})", subtract ? "?!" : "?=", right, left);
        return {};
    }

    // From '[' to before the ']' or operator that ends the items.
    Expected<void> class_items() {
        take(next_is("[^") ? 2 : 1);
        if (next_is("]")) return refuse("the empty class", 1);
        while (at_ < pattern_.size()) {
            if (next_is("]") || next_is("&&")) return {};
            if (next_is("[")) return refuse("the nested class", 4);
            if (dialect_ == RegexDialect::rust && (next_is("--") || next_is("~~")))
                return refuse("the class operator", 2);
            if (next_is("\\")) {
                ESPALIER_RETURN_IF_ERROR(escape());
            } else {
                take(1);
            }
        }
        return refuse("an unclosed class", 0);
    }

    std::string_view pattern_;
    RegexDialect dialect_;
    std::string_view name_;
    std::size_t at_ = 0;
    std::string out_;
};

}  // namespace

Expected<std::string> to_pcre2(std::string_view pattern, RegexDialect dialect,
                               std::string_view name) {
    // DeepSeek-V2's trailing white space. As it stands, every start inside a run is tried up to the
    // run's end: 1 MB of spaces before a letter would take 5·10¹¹ steps. Only the search's start
    // and a run's first character can begin a match, for a later start reaches no other end.
    if (pattern == R"(\s+$)") return R"((?:\G|(?<!\s))\s+$)";
    return Translator(pattern, dialect, name).run();
}

}  // namespace espalier::text
