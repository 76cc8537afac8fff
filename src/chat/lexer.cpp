// SPDX-License-Identifier: Apache-2.0
#include "chat/lexer.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "chat/budget.hpp"
#include "chat/unescape.hpp"
#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Newlines become \n, and the last one goes.
std::string normalize(std::string_view source) {
    std::string out;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            out += source[i];
            continue;
        }
        out += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
    if (out.ends_with('\n')) out.pop_back();
    return out;
}

std::size_t skip_space(std::string_view text, std::size_t at) {
    while (at < text.size() && text::is_python_space(text::code_point_at(text, at)))
        at += text::utf8_length(static_cast<unsigned char>(text[at]));
    return at;
}

std::string_view without_trailing_space(std::string_view text) {
    std::size_t end = 0;
    for (std::size_t at = 0; at < text.size();) {
        const bool space = text::is_python_space(text::code_point_at(text, at));
        at += text::utf8_length(static_cast<unsigned char>(text[at]));
        if (!space) end = at;
    }
    return text.substr(0, end);
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(normalize(source)), rest_(source_) {}

    std::vector<Token> run() {
        while (at_ < rest_.size()) with_line(line_, [&] { read_root(); });
        add(Token::Kind::end);
        return std::move(tokens_);
    }

  private:
    // Text up to the next tag, and the tag.
    void read_root() {
        std::size_t tag = rest_.find('{', at_);
        while (tag != kNone &&
               (tag + 1 == rest_.size() || std::string_view("{%#").find(rest_[tag + 1]) == kNone))
            tag = rest_.find('{', tag + 1);
        if (tag == kNone) {
            add_data(rest_.substr(at_));
            move_to(rest_.size());
            return;
        }
        const char kind = rest_[tag + 1];
        const char sign = sign_at(tag + 2);
        add_data(cut_before_tag(rest_.substr(at_, tag - at_), sign, kind != '{'));
        move_to(tag);
        if (kind == '#') {
            move_to(tag + 2 + (sign ? 1 : 0));
            skip_comment();
        } else if (const std::size_t raw = kind == '%' ? end_of_raw_begin(tag, sign) : kNone;
                   raw != kNone) {
            move_to(raw);
            read_raw();
        } else {
            add(kind == '%' ? Token::Kind::block_begin : Token::Kind::variable_begin);
            move_to(tag + 2 + (sign ? 1 : 0));
            read_tag(kind == '%');
        }
    }

    char sign_at(std::size_t at) const {
        return at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+') ? rest_[at] : '\0';
    }

    // Part of the text before a tag that stays: `-` takes all white space, lstrip_blocks takes that
    // of the tag's own line unless the sign is `+`.
    std::string_view cut_before_tag(std::string_view text, char sign, bool lstrip) const {
        if (sign == '-') return without_trailing_space(text);
        if (sign == '+' || !lstrip) return text;
        const std::size_t newline = text.rfind('\n');
        const std::size_t line_begin = newline == kNone ? 0 : newline + 1;
        const bool at_line_start = newline != kNone || at_ == 0 || rest_[at_ - 1] == '\n';
        if (at_line_start && skip_space(text, line_begin) == text.size())
            return text.substr(0, line_begin);
        return text;
    }

    // After an end tag at `end`: `-` takes all white space, trim_blocks one newline unless `+`.
    std::size_t after_end(std::size_t end, char sign, bool trim) const {
        if (sign == '-') return skip_space(rest_, end);
        return trim && sign != '+' && end < rest_.size() && rest_[end] == '\n' ? end + 1 : end;
    }

    void skip_comment() {
        const std::size_t close = rest_.find("#}", at_);
        if (close == kNone) fail_template(ErrorKind::invalid, "a comment has no end");
        const char sign = close > at_ ? sign_at(close - 1) : '\0';
        move_to(after_end(close + 2, sign, true));
    }

    // Behind `{% raw %}` if that is what begins at `tag`.
    std::size_t end_of_raw_begin(std::size_t tag, char sign) const {
        std::size_t at = skip_space(rest_, tag + 2 + (sign ? 1 : 0));
        if (rest_.substr(at, 3) != "raw") return kNone;
        at = skip_space(rest_, at + 3);
        if (rest_.substr(at, 3) == "-%}") return skip_space(rest_, at + 3);
        return rest_.substr(at, 2) == "%}" ? at + 2 : kNone;
    }

    void read_raw() {
        for (std::size_t tag = at_;; ++tag) {
            tag = rest_.find("{%", tag);
            if (tag == kNone) fail_template(ErrorKind::invalid, "a raw block has no end");
            const char sign = sign_at(tag + 2);
            std::size_t at = skip_space(rest_, tag + 2 + (sign ? 1 : 0));
            if (rest_.substr(at, 6) != "endraw") continue;
            at = skip_space(rest_, at + 6);
            const char close = sign_at(at);
            if (close) ++at;
            if (rest_.substr(at, 2) != "%}") continue;
            add_data(cut_before_tag(rest_.substr(at_, tag - at_), sign, true));
            move_to(after_end(at + 2, close, true));
            return;
        }
    }

    void read_tag(bool block) {
        std::vector<char> brackets;
        while (true) {
            move_to(skip_space(rest_, at_));
            if (at_ == rest_.size())
                fail_template(ErrorKind::invalid, "the template ends inside a tag");
            if (brackets.empty() && read_end(block)) return;
            const char c = rest_[at_];
            if (is_digit(c)) {
                read_number();
            } else if (is_name_start(c)) {
                std::size_t end = at_;
                while (end < rest_.size() && is_name_part(rest_[end])) ++end;
                add(Token::Kind::name, std::string(rest_.substr(at_, end - at_)));
                move_to(end);
            } else if (c == '\'' || c == '"') {
                read_string(c);
            } else {
                read_symbol(brackets);
            }
        }
    }

    bool read_end(bool block) {
        const char sign = sign_at(at_);
        if (sign == '+' && !block) return false;
        const std::size_t at = at_ + (sign ? 1 : 0);
        if (rest_.substr(at, 2) != (block ? "%}" : "}}")) return false;
        add(block ? Token::Kind::block_end : Token::Kind::variable_end);
        move_to(after_end(at + 2, sign, block));
        return true;
    }

    void read_string(char quote) {
        std::size_t end = at_ + 1;
        while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
        if (end >= rest_.size()) fail_template(ErrorKind::invalid, "a string has no end");
        add(Token::Kind::string, unescape(rest_.substr(at_ + 1, end - at_ - 1)));
        move_to(end + 1);
    }

    // \d+(_\d+)*
    std::size_t end_of_digits(std::size_t at) const {
        while (at < rest_.size() &&
               (is_digit(rest_[at]) ||
                (rest_[at] == '_' && at + 1 < rest_.size() && is_digit(rest_[at + 1]))))
            ++at;
        return at;
    }

    void read_number() {
        std::size_t end = end_of_digits(at_);
        bool real = false;
        const bool after_dot = at_ > 0 && rest_[at_ - 1] == '.';
        if (!after_dot && end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1])) {
            real = true;
            end = end_of_digits(end + 1);
        }
        if (!after_dot && end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
            const std::size_t digits = end + 1 + (sign_at(end + 1) ? 1 : 0);
            if (digits < rest_.size() && is_digit(rest_[digits])) {
                real = true;
                end = end_of_digits(digits);
            }
        }
        std::string text(rest_.substr(at_, end - at_));
        std::erase(text, '_');
        if (text[0] == '0' && !real &&
            (text.find_first_not_of('0') != kNone ||
             (end < rest_.size() && is_name_part(rest_[end]))))
            fail_template(ErrorKind::unsupported, "a number that begins with 0 is not supported");
        add(Token::Kind::number);
        tokens_.back().number = real ? Value(std::strtod(text.c_str(), nullptr)) : integer(text);
        move_to(end);
    }

    static Value integer(const std::string& text) {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc())
            fail_template(ErrorKind::unsupported, "the number {} is too large", text);
        return Value(static_cast<Integer>(value));
    }

    void read_symbol(std::vector<char>& brackets) {
        constexpr std::string_view kDoubled[] = {"//", "**", "==", "!=", ">=", "<="};
        constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
        const std::string_view two = rest_.substr(at_, 2);
        const bool doubled = std::ranges::find(kDoubled, two) != std::end(kDoubled);
        const char c = rest_[at_];
        if (!doubled && kSingle.find(c) == kNone)
            fail_template(ErrorKind::invalid, "unexpected character '{}'",
                          rest_.substr(at_, text::utf8_length(static_cast<unsigned char>(c))));
        if (!doubled) balance(c, brackets);
        add(Token::Kind::symbol, std::string(doubled ? two : two.substr(0, 1)));
        move_to(at_ + (doubled ? 2 : 1));
    }

    static void balance(char c, std::vector<char>& brackets) {
        constexpr std::string_view kOpen = "([{";
        constexpr std::string_view kClose = ")]}";
        if (const std::size_t open = kOpen.find(c); open != kNone) brackets.push_back(kClose[open]);
        if (kClose.find(c) == kNone) return;
        if (brackets.empty() || brackets.back() != c)
            fail_template(ErrorKind::invalid, "unexpected '{}'", c);
        brackets.pop_back();
    }

    void add(Token::Kind kind, std::string text = {}) {
        tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
    }
    void add_data(std::string_view text) {
        if (!text.empty()) add(Token::Kind::data, std::string(text));
    }
    void move_to(std::size_t at) {
        line_ +=
            static_cast<int>(std::count(rest_.begin() + static_cast<std::ptrdiff_t>(at_),
                                        rest_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
        at_ = at;
    }

    std::string source_;
    std::string_view rest_;
    std::size_t at_ = 0;
    int line_ = 1;
    std::vector<Token> tokens_;
};

}  // namespace

std::string Token::describe() const {
    switch (kind) {
        case Kind::data:
            return "text";
        case Kind::block_begin:
            return "'{%'";
        case Kind::block_end:
            return "'%}'";
        case Kind::variable_begin:
            return "'{{'";
        case Kind::variable_end:
            return "'}}'";
        case Kind::string:
            return "a string";
        case Kind::number:
            return "a number";
        case Kind::name:
        case Kind::symbol:
            return "'" + text + "'";
        case Kind::end:
            return "the end of the template";
    }
    return {};
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace espalier::chat
