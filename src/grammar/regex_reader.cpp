// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex_reader.hpp"

#include <algorithm>

#include "text/utf8.hpp"

namespace espalier::grammar {
namespace {

const CodePointSet kDigits = {{'0', '9'}};
const CodePointSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpace = {{'\t', '\r'}, {' ', ' '}};
const CodePointSet kSurrogates = {{0xd800, 0xdfff}};

int hexadecimal_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool is_alphanumeric(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

bool RegexReader::take(std::string_view text) {
    if (!regex_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
}

std::uint32_t RegexReader::next_code_point() {
    const std::uint32_t code_point = text::code_point_at(regex_, at_);
    at_ += text::utf8_length(static_cast<unsigned char>(regex_[at_]));
    return code_point;
}

Expected<RegexNode> RegexReader::run() {
    ESPALIER_ASSIGN_OR_RETURN(Part part, alternatives(0));
    if (!at_end()) return refuse(ErrorKind::invalid, "')' closes nothing");
    return std::move(part.node);
}

Expected<RegexReader::Part> RegexReader::alternatives(int depth) {
    if (depth > RegexLimits::kDepth)
        return refuse(ErrorKind::exhausted, "groups are nested deeper than {}",
                      RegexLimits::kDepth);
    Part all{.node = {.kind = RegexNode::Kind::choice}};
    bool said = false;  // anything but the empty text
    do {
        ESPALIER_ASSIGN_OR_RETURN(Part part, sequence(depth));
        all.expanded += part.expanded;
        said = said || !part.node.is_empty();
        all.node.children.push_back(std::move(part.node));
    } while (take("|"));
    if (all.expanded > RegexLimits::kExpanded)
        return refuse(ErrorKind::exhausted,
                      "more than {} characters once repetitions are written out",
                      RegexLimits::kExpanded);
    if (!said) return Part{};
    const bool of_characters = std::ranges::all_of(all.node.children, [](const RegexNode& child) {
        return child.kind == RegexNode::Kind::characters;
    });
    if (of_characters)  // a|b is [ab]
        for (std::size_t i = 1; i < all.node.children.size(); ++i)
            all.node.children[0].set.add(all.node.children[i].set);
    if (of_characters || all.node.children.size() == 1)
        all.node = RegexNode(std::move(all.node.children[0]));
    return all;
}

Expected<RegexReader::Part> RegexReader::sequence(int depth) {
    Part all{.node = {.kind = RegexNode::Kind::sequence}};
    if (depth == 0) take("^");
    while (!at_end() && peek() != '|' && peek() != ')') {
        if (peek() == '$') {
            // The whole text is matched, so an anchor at an end of it says nothing.
            ++at_;
            if (depth == 0 && (at_end() || peek() == '|')) break;
            return refuse(ErrorKind::unsupported, "'$' before the end is not supported");
        }
        ESPALIER_ASSIGN_OR_RETURN(Part part, atom(depth));
        ESPALIER_ASSIGN_OR_RETURN(part, repeated(std::move(part)));
        all.expanded += part.expanded;
        if (!part.node.is_empty()) all.node.children.push_back(std::move(part.node));
    }
    if (all.node.children.empty()) return Part{};
    if (all.node.children.size() == 1) all.node = RegexNode(std::move(all.node.children[0]));
    return all;
}

Expected<RegexReader::Part> RegexReader::atom(int depth) {
    const char c = peek();
    if (c == '(') return group(depth);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return refuse(ErrorKind::invalid, "'{}' repeats nothing", c);
    if (c == '^') return refuse(ErrorKind::unsupported, "'^' behind the start is not supported");
    if (c == '[') {
        ESPALIER_ASSIGN_OR_RETURN(const CodePointSet set, bracket());
        return of_class(set);
    }
    if (c == '\\') {
        ESPALIER_ASSIGN_OR_RETURN(const CodePointSet set, escape(/*in_class=*/false));
        return of_class(set);
    }
    if (take(".")) return of_class(CodePointSet{{'\n', '\n'}}.complement());
    const std::uint32_t code_point = next_code_point();
    return of_class(CodePointSet{{code_point, code_point}});
}

Expected<RegexReader::Part> RegexReader::of_class(const CodePointSet& set) {
    const CodePointSet left = use_ == RegexUse::json_string
                                  ? set.without(plain_json_characters().complement())
                                  : set.without(kSurrogates);
    if (left.empty())
        return refuse(ErrorKind::unsupported, "{}",
                      use_ == RegexUse::json_string
                          ? "a character that JSON escapes in a string is not supported"
                          : "an empty class");
    return Part{{.kind = RegexNode::Kind::characters, .set = left}, 1};
}

Expected<RegexReader::Part> RegexReader::group(int depth) {
    ++at_;
    ESPALIER_RETURN_IF_ERROR(group_head());
    ESPALIER_ASSIGN_OR_RETURN(Part part, alternatives(depth + 1));
    if (!take(")")) return refuse(ErrorKind::invalid, "'(' is not closed");
    return part;
}

Expected<void> RegexReader::group_head() {
    if (!take("?")) return {};
    if (take(":")) return {};
    if (peek() == '=' || peek() == '!')
        return refuse(ErrorKind::unsupported, "lookahead is not supported");
    if (take("<=") || take("<!"))
        return refuse(ErrorKind::unsupported, "lookbehind is not supported");
    if (!take("P<") && !take("<"))
        return refuse(ErrorKind::unsupported, "'(?{}' is not supported", peek());
    const std::size_t close = regex_.find('>', at_);
    const std::string_view name = regex_.substr(at_, close == regex_.npos ? 0 : close - at_);
    if (name.empty() ||
        !std::ranges::all_of(name, [](char c) { return is_alphanumeric(c) || c == '_'; }))
        return refuse(ErrorKind::invalid, "a group's name is letters, digits and '_'");
    at_ = close + 1;
    return {};
}

Expected<RegexReader::Counts> RegexReader::counts() {
    if (take("*")) return Counts{0, std::nullopt};
    if (take("+")) return Counts{1, std::nullopt};
    if (take("?")) return Counts{0, 1};
    if (!take("{")) return Counts{};
    Counts counts;
    ESPALIER_ASSIGN_OR_RETURN(counts.least, number());
    counts.most = counts.least;
    if (take(",")) {
        counts.most = std::nullopt;
        if (peek() != '}') {
            ESPALIER_ASSIGN_OR_RETURN(counts.most, number());
        }
    }
    if (!take("}")) return refuse(ErrorKind::invalid, "'{{' is not closed by '}}'");
    if (counts.most && *counts.most < counts.least)
        return refuse(ErrorKind::invalid, "repeated {} to {} times", counts.least, *counts.most);
    return counts;
}

Expected<std::int64_t> RegexReader::number() {
    std::int64_t value = -1;
    while (peek() >= '0' && peek() <= '9') {
        value = std::max<std::int64_t>(value, 0) * 10 + (regex_[at_++] - '0');
        if (value > RegexLimits::kRepeat)
            return refuse(ErrorKind::exhausted, "a repetition beyond the limit of {}",
                          RegexLimits::kRepeat);
    }
    if (value < 0) return refuse(ErrorKind::invalid, "a repetition without a count");
    return value;
}

Expected<RegexReader::Part> RegexReader::repeated(Part part) {
    const std::size_t before = at_;
    ESPALIER_ASSIGN_OR_RETURN(const Counts times, counts());
    if (at_ == before) return part;
    // Reluctant repetition takes the same texts; a possessive one may not.
    if (!take("?") && peek() == '+')
        return refuse(ErrorKind::unsupported, "possessive repetition is not supported");
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
        return refuse(ErrorKind::invalid, "'{}' repeats a repetition", peek());
    if (part.node.is_empty() || times.most == 0) return Part{};
    part.expanded *= std::max<std::int64_t>(times.most.value_or(times.least + 1), 1);
    if (part.expanded > RegexLimits::kExpanded)
        return refuse(ErrorKind::exhausted,
                      "more than {} characters once repetitions are written out",
                      RegexLimits::kExpanded);
    if (times.least == 1 && times.most == 1) return part;
    RegexNode node{.kind = RegexNode::Kind::repetition, .least = times.least, .most = times.most};
    node.children.push_back(std::move(part.node));
    part.node = std::move(node);
    return part;
}

Expected<CodePointSet> RegexReader::bracket() {
    ++at_;
    const bool negated = take("^");
    CodePointSet set;
    bool first = true;
    while (first || peek() != ']') {
        if (at_end()) return refuse(ErrorKind::invalid, "'[' is not closed");
        if (first && peek() == ']')
            return refuse(ErrorKind::unsupported,
                          "a class that begins with ']': write it as '\\]'");
        first = false;
        if (take("[:") || take("&&") || take("--"))
            return refuse(ErrorKind::unsupported, "operations inside a class are not supported");
        const auto one = [&]() -> Expected<CodePointSet> {
            if (peek() == '\\') return escape(/*in_class=*/true);
            const std::uint32_t code_point = next_code_point();
            return CodePointSet{{code_point, code_point}};
        };
        ESPALIER_ASSIGN_OR_RETURN(const CodePointSet low, one());
        if (peek() != '-' || at_ + 1 >= regex_.size() || regex_[at_ + 1] == ']') {
            set.add(low);
            continue;
        }
        ++at_;
        if (at_end()) return refuse(ErrorKind::invalid, "'[' is not closed");
        ESPALIER_ASSIGN_OR_RETURN(const CodePointSet high, one());
        const auto single = [](const CodePointSet& s) {
            return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last;
        };
        if (!single(low) || !single(high) || high.ranges()[0].first < low.ranges()[0].first)
            return refuse(ErrorKind::invalid, "a range of a class that does not ascend");
        set.add(CodePointRange{low.ranges()[0].first, high.ranges()[0].first});
    }
    ++at_;
    return negated ? set.complement() : set;
}

Expected<std::uint32_t> RegexReader::hexadecimal(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
        const int digit = hexadecimal_digit(peek());
        if (digit < 0)
            return refuse(ErrorKind::invalid, "{} hexadecimal digits are missing", digits);
        value = value * 16 + static_cast<std::uint32_t>(digit);
        ++at_;
    }
    if (value > CodePointSet::kLast)
        return refuse(ErrorKind::invalid, "U+{:X} is beyond Unicode", value);
    return value;
}

Expected<CodePointSet> RegexReader::escape(bool in_class) {
    ++at_;
    if (at_end()) return refuse(ErrorKind::invalid, "'\\' stands at the end");
    const char c = regex_[at_];
    if (static_cast<unsigned char>(c) >= 0x80)
        return refuse(ErrorKind::unsupported,
                      "an escape of a letter beyond ASCII is not supported");
    ++at_;
    const auto one = [](std::uint32_t code_point) {
        return CodePointSet{{code_point, code_point}};
    };
    switch (c) {
        case 'd':
            return kDigits;
        case 'D':
            return kDigits.complement();
        case 'w':
            return kWord;
        case 'W':
            return kWord.complement();
        case 's':
            return kSpace;
        case 'S':
            return kSpace.complement();
        case 't':
            return one('\t');
        case 'n':
            return one('\n');
        case 'r':
            return one('\r');
        case 'f':
            return one('\f');
        case 'v':
            return one('\v');
        case 'x':
        case 'u':
        case 'U': {
            ESPALIER_ASSIGN_OR_RETURN(const std::uint32_t code_point, hexadecimal(c == 'x'   ? 2
                                                                                  : c == 'u' ? 4
                                                                                             : 8));
            return one(code_point);
        }
        default:
            break;
    }
    if (c == 'b' && !in_class) return refuse(ErrorKind::unsupported, "'\\b' is not supported");
    if (c >= '1' && c <= '9')
        return refuse(ErrorKind::unsupported, "a backreference is not supported");
    if (is_alphanumeric(c)) return refuse(ErrorKind::unsupported, "'\\{}' is not supported", c);
    return one(static_cast<unsigned char>(c));
}

}  // namespace espalier::grammar
