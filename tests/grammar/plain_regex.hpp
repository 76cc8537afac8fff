// SPDX-License-Identifier: Apache-2.0
// Regular expressions by their definition, as sets of places in a text: slow, small, and without
// the going back that takes std::regex minutes here. Knows what the tests' expressions use.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include "text/utf8.hpp"

namespace espalier::test {

class PlainRegex {
  public:
    explicit PlainRegex(const std::string& pattern) : pattern_(decoded(pattern)) {
        match_ = alternatives();
        if (at_ != pattern_.size()) throw std::invalid_argument(pattern);
    }

    bool full_match(const std::string& text) const {
        return run(text, {0}).contains(decoded(text).size());
    }

    // Somewhere in the text, except for what ^ and $ say.
    bool search(const std::string& text) const {
        Places starts = {0};
        const std::size_t size = decoded(text).size();
        for (std::size_t place = 0; !anchored_start_ && place <= size; ++place)
            starts.insert(place);
        const Places ends = run(text, starts);
        return anchored_end_ ? ends.contains(size) : !ends.empty();
    }

  private:
    using Text = std::u32string;
    using Places = std::set<std::size_t>;
    using Match = std::function<Places(const Text&, const Places&)>;
    using Test = std::function<bool(char32_t)>;

    static Text decoded(const std::string& utf8) {
        Text text;
        for (std::size_t at = 0; at < utf8.size();
             at += text::utf8_length(static_cast<unsigned char>(utf8[at])))
            text += static_cast<char32_t>(text::code_point_at(utf8, at));
        return text;
    }

    Places run(const std::string& text, const Places& starts) const {
        return match_(decoded(text), starts);
    }
    char32_t peek() const { return at_ < pattern_.size() ? pattern_[at_] : U'\0'; }

    Match alternatives() {
        Match all = sequence();
        while (peek() == U'|') {
            ++at_;
            all = [a = all, b = sequence()](const Text& text, const Places& from) {
                Places ends = a(text, from);
                ends.merge(b(text, from));
                return ends;
            };
        }
        return all;
    }

    Match sequence() {
        Match all = [](const Text&, const Places& from) { return from; };
        while (at_ < pattern_.size() && peek() != U'|' && peek() != U')') {
            if (peek() == U'^' || peek() == U'$') {
                (pattern_[at_++] == U'^' ? anchored_start_ : anchored_end_) = true;
                continue;
            }
            all = [a = all, b = repeated(atom())](const Text& text, const Places& from) {
                return b(text, a(text, from));
            };
        }
        return all;
    }

    Match atom() {
        if (peek() == U'(') {
            ++at_;
            Match inner = alternatives();
            ++at_;
            return inner;
        }
        return [test = one()](const Text& text, const Places& from) {
            Places ends;
            for (const std::size_t place : from)
                if (place < text.size() && test(text[place])) ends.insert(place + 1);
            return ends;
        };
    }

    Test one() {
        const char32_t c = pattern_[at_++];
        if (c == U'.') return [](char32_t x) { return x != U'\n'; };
        if (c == U'\\') return escaped(pattern_[at_++]);
        if (c != U'[') return [c](char32_t x) { return x == c; };
        const bool negated = peek() == U'^';
        if (negated) ++at_;
        Test any = [](char32_t) { return false; };
        while (peek() != U']') {
            Test item;
            if (peek() == U'\\') {
                at_ += 2;
                item = escaped(pattern_[at_ - 1]);
            } else if (at_ + 2 < pattern_.size() && pattern_[at_ + 1] == U'-' &&
                       pattern_[at_ + 2] != U']') {
                item = [low = pattern_[at_], high = pattern_[at_ + 2]](char32_t x) {
                    return x >= low && x <= high;
                };
                at_ += 3;
            } else {
                item = [c = pattern_[at_++]](char32_t x) { return x == c; };
            }
            any = [any, item](char32_t x) { return any(x) || item(x); };
        }
        ++at_;
        return [any, negated](char32_t x) { return any(x) != negated; };
    }

    static Test escaped(char32_t c) {
        const auto digit = [](char32_t x) { return x >= U'0' && x <= U'9'; };
        const auto space = [](char32_t x) { return x == U' ' || (x >= 9 && x <= 13); };
        if (c == U'd') return digit;
        if (c == U's') return space;
        if (c == U'S') return [space](char32_t x) { return !space(x); };
        if (c == U'w')
            return [digit](char32_t x) {
                return digit(x) || x == U'_' || (x >= U'a' && x <= U'z') ||
                       (x >= U'A' && x <= U'Z');
            };
        return [c](char32_t x) { return x == c; };
    }

    Match repeated(Match inner) {
        std::size_t least = 1;
        std::size_t most = 1;
        constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
        const char32_t c = peek();
        if (c == U'*' || c == U'+' || c == U'?') {
            ++at_;
            least = c == U'+' ? 1 : 0;
            most = c == U'?' ? 1 : kNoLimit;
        } else if (c == U'{') {
            const auto number = [&] {
                std::size_t value = 0;
                for (++at_; peek() >= U'0' && peek() <= U'9'; ++at_)
                    value = value * 10 + (peek() - U'0');
                return value;
            };
            least = most = number();
            if (peek() == U',') most = number();
            ++at_;
        }
        return [inner, least, most](const Text& text, const Places& from) {
            Places now = from;
            for (std::size_t i = 0; i < least; ++i) now = inner(text, now);
            Places all = now;
            for (std::size_t i = least; i < most && !now.empty(); ++i) {
                Places fresh;
                for (const std::size_t place : inner(text, now))
                    if (all.insert(place).second) fresh.insert(place);
                now = std::move(fresh);
            }
            return all;
        };
    }

    Text pattern_;
    std::size_t at_ = 0;
    bool anchored_start_ = false;
    bool anchored_end_ = false;
    Match match_;
};

}  // namespace espalier::test
