// SPDX-License-Identifier: Apache-2.0
// What output::Parser is held to: a plain reading of the whole text at once, the heads of calls by
// regular expressions.
#pragma once

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "output/parser.hpp"

namespace espalier::output {

// One line per event, pieces of one kind joined.
inline std::string told(const std::vector<Event>& events) {
    std::string made;
    using Kind = Event::Kind;
    Kind last = Kind::call_begin;
    for (const Event& event : events) {
        constexpr const char* kNames[] = {"R", "C", "F", "A"};
        if (event.kind == Kind::call_begin || event.kind != last)
            made +=
                std::string(made.empty() ? "" : "\n") + kNames[static_cast<int>(event.kind)] + ":";
        last = event.kind;
        made += event.text;
        if (!event.id.empty()) made += " " + event.id;
    }
    return made;
}

inline std::string quoted(std::string_view text) {
    return std::regex_replace(std::string(text), std::regex(R"([.^$|()\[\]{}*+?\\])"), R"(\$&)");
}

// Any beginning of the text.
inline std::string begun(std::string_view text) {
    std::string pattern;
    for (std::size_t i = text.size(); i > 0; --i)
        pattern = "(?:" + quoted(text.substr(i - 1, 1)) + pattern + ")?";
    return pattern;
}

inline std::string_view trimmed_block(const ToolFormat& format) {
    const std::string_view block = format.after_arguments;
    return block.substr(std::min(block.size(), block.find_first_not_of('\n')));
}

class Oracle {
  public:
    explicit Oracle(const ParserOptions& options) : options_(options) {
        const ToolFormat& format = *options.tools;
        const std::string space = "[ \\n\\r\\t]{0,64}";
        head_ = std::regex(space + quoted(format.call_begin) + space + quoted(format.before_name) +
                           "([^]{0,128}?)" + quoted(format.after_name) + space + "(?=\\{)");
        if (format.has_pairs())
            head_ = std::regex(space + quoted(format.call_begin) + space +
                               "([^]{0,128}?)(?=" + quoted(format.pairs.key_begin) + "|" +
                               quoted(format.call_end) + ")");
        const std::string block = quoted(trimmed_block(format));
        close_ = std::regex(space + block + space + "(" + quoted(format.call_end) + "|" +
                            quoted(format.section_end) + ")");
        section_end_ = std::regex(space + quoted(format.section_end));
        unfinished_section_end_ = std::regex(
            space + begun(format.section_end.empty() ? format.call_begin : format.section_end));
        unfinished_close_ =
            std::regex(space + "(?:" + begun(trimmed_block(format)) + "|" + block + space +
                       "(?:" + begun(format.call_end) + "|" + begun(format.section_end) + "))");
    }

    std::string run(const std::string& text) {
        text_ = text;
        at_ = 0;
        left_open_ = false;
        events_.clear();
        if (options_.reasoning_open) {
            const std::regex begin("[ \\n\\r\\t]{0,64}" + quoted(options_.reasoning->begin));
            match(begin);
            read_reasoning();
        }
        while (at_ < text_.size()) read_content();
        return told(events_);
    }

  private:
    using Kind = Event::Kind;

    bool match(const std::regex& pattern, std::smatch* found = nullptr) {
        std::smatch local;
        std::smatch& result = found == nullptr ? local : *found;
        const auto from = text_.cbegin() + static_cast<std::ptrdiff_t>(at_);
        if (!std::regex_search(from, text_.cend(), result, pattern,
                               std::regex_constants::match_continuous))
            return false;
        at_ += static_cast<std::size_t>(result.length(0));
        return true;
    }
    void tell(Kind kind, std::size_t end) {
        if (end > at_) events_.push_back({.kind = kind, .text = text_.substr(at_, end - at_)});
        at_ = end;
    }
    // One byte at a time: does the reasoning end here, or does a call begin?
    void read_reasoning() {
        while (at_ < text_.size()) {
            if (text_.compare(at_, options_.reasoning->end.size(), options_.reasoning->end) == 0) {
                at_ += options_.reasoning->end.size();
                return;
            }
            if (options_.reasoning->ended_by_calls && read_section()) return;
            tell(Kind::reasoning, at_ + 1);
        }
    }
    void read_content() {
        if (!read_section()) tell(Kind::content, at_ + 1);
    }
    bool read_section() {
        const std::string_view begin = options_.tools->opening();
        if (text_.compare(at_, begin.size(), begin) != 0) return false;
        const std::size_t before = at_;
        at_ += options_.tools->section_begin.size();
        if (!read_call()) {
            at_ = before;
            return false;
        }
        for (;;) {
            if (!options_.tools->section_end.empty() && match(section_end_)) return true;
            if (!left_open_ && read_call()) continue;
            if (left_open_) return true;
            if (rest_is(unfinished_section_end_)) at_ = text_.size();
            return true;
        }
    }
    bool rest_is(const std::regex& pattern) const {
        return std::regex_match(text_.cbegin() + static_cast<std::ptrdiff_t>(at_), text_.cend(),
                                pattern);
    }
    bool read_call() {
        std::smatch found;
        const std::size_t before = at_;
        if (!match(head_, &found)) return false;
        std::string head = std::regex_replace(found[1].str(), std::regex("^[ \\n\\r\\t]+"), "");
        head = std::regex_replace(head, std::regex("[ \\n\\r\\t]+$"), "");
        std::string name = head, id;
        std::smatch parts;
        if (options_.tools->numbered) {
            id = head;
            if (!std::regex_match(head, parts, std::regex("(?:functions\\.)?([^]*):[0-9]+")))
                name = "-";
            else
                name = parts[1];
        }
        if (std::ranges::find(options_.functions, name) == options_.functions.end()) {
            at_ = before;
            return false;
        }
        events_.push_back({.kind = Kind::call_begin, .text = name, .id = id});
        if (options_.tools->has_pairs())
            left_open_ = read_pairs(name) != Pairs::whole;
        else
            read_arguments();
        return true;
    }
    // ---- pairs: by the places of their markers in the whole text --------------------------------
    enum class Pairs { whole, broken, unfinished };
    std::string_view rest() const { return std::string_view(text_).substr(at_); }
    void spaces() {
        for (int i = 0; i < 64 && at_ < text_.size() && std::strchr(" \n\r\t", text_[at_]); ++i)
            ++at_;
    }
    // Passes the marker. Nothing: the text ends inside it.
    std::optional<bool> passes(std::string_view marker) {
        if (rest().starts_with(marker)) return at_ += marker.size(), true;
        if (marker.starts_with(rest())) return std::nullopt;
        return false;
    }
    Pairs read_pairs(const std::string& function) {
        std::string made = "{";
        const Pairs end = read_pairs(function, made);
        if (end != Pairs::unfinished) made += "}";
        events_.push_back({.kind = Kind::arguments, .text = made});
        if (end == Pairs::unfinished) at_ = text_.size();
        return end;
    }
    Pairs read_pairs(const std::string& function, std::string& made) {
        const PairFormat& format = options_.tools->pairs;
        for (;;) {
            const std::size_t before = at_;
            spaces();
            const auto ends = passes(options_.tools->call_end);
            if (ends == true) return Pairs::whole;
            auto begins = passes(format.key_begin);
            std::string key;
            if (begins == true) {
                const std::size_t end =
                    rest().substr(0, 128 + format.key_end.size()).find(format.key_end);
                if (end == std::string_view::npos && rest().size() < 128 + format.key_end.size())
                    return Pairs::unfinished;
                if (end != std::string_view::npos) {
                    key = std::regex_replace(std::string(rest().substr(0, end)),
                                             std::regex("^[ \n\r\t]+|[ \n\r\t]+$"), "");
                    at_ += end + format.key_end.size();
                    spaces();
                    begins = passes(format.value_begin);
                } else {
                    begins = false;
                }
            }
            if (begins == true) {
                made += (made == "{" ? "" : ", ") + quoted_json(key) + ": ";
                if (!read_value(function, key, made)) return Pairs::unfinished;
                continue;
            }
            if (!ends || !begins) return Pairs::unfinished;
            at_ = before;
            return Pairs::broken;
        }
    }
    static std::string quoted_json(const std::string& text) {
        std::string made =
            nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
        for (const auto& [from, to] : {std::pair("\\t", "\\u0009"), std::pair("\\r", "\\u000d"),
                                       std::pair("\\b", "\\u0008"), std::pair("\\f", "\\u000c")})
            made = replaced(made, from, to);
        return made;
    }
    // Escapes of two bytes; those of a backslash are passed.
    static std::string replaced(const std::string& text, std::string_view from,
                                std::string_view to) {
        std::string made;
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text.compare(i, 2, from) == 0) {
                made += to;
                ++i;
            } else if (text[i] == '\\') {
                made += text.substr(i++, 2);
            } else {
                made += text[i];
            }
        }
        return made;
    }
    // False: the text ends inside it.
    bool read_value(const std::string& function, const std::string& key, std::string& made) {
        const std::string_view marker = options_.tools->pairs.value_end;
        ValueTypes types = kAnyValue;
        if (const auto found = options_.types.find(function); found != options_.types.end())
            if (const auto one = found->second.find(key); one != found->second.end())
                types = one->second;
        const std::size_t end = rest().find(marker);
        const std::string value(rest().substr(0, end));
        const std::size_t first = std::min<std::size_t>(64, value.find_first_not_of(" \n\r\t"));
        const bool object = first < value.size() && value[first] == '{' && (types & kObjectValue);
        const bool list = first < value.size() && value[first] == '[' && (types & kArrayValue);
        if (types != kStringValue && (object || list)) return read_json(first, made);
        if (end == std::string_view::npos) {
            if (!value.empty()) made += quoted_json(value);
            if (!value.empty()) made.pop_back();
            return false;
        }
        at_ += end + marker.size();
        const std::string trimmed =
            std::regex_replace(value, std::regex("^[ \n\r\t]+|[ \n\r\t]+$"), "");
        const auto parsed = nlohmann::ordered_json::parse(trimmed, nullptr, false);
        const bool scalar = types != kStringValue && value.size() <= 64 && !parsed.is_discarded() &&
                            !parsed.is_string() && !parsed.is_structured() &&
                            (type_of(parsed) & types) != kNoValue;
        made += scalar ? trimmed : quoted_json(value);
        return true;
    }
    // Up to a marker that is outside of strings.
    bool read_json(std::size_t first, std::string& made) {
        at_ += first;
        bool in_string = false;
        for (; at_ < text_.size(); ++at_) {
            if (!in_string && rest().starts_with(options_.tools->pairs.value_end)) {
                at_ += options_.tools->pairs.value_end.size();
                return true;
            }
            made += text_[at_];
            if (in_string && text_[at_] == '\\' && at_ + 1 < text_.size())
                made += text_[++at_];
            else if (text_[at_] == '"')
                in_string = !in_string;
        }
        return false;
    }

    void read_arguments() {
        std::size_t end = at_;
        int depth = 0;
        bool in_string = false;
        for (; end < text_.size(); ++end) {
            const char c = text_[end];
            if (in_string && c == '\\') {
                ++end;
            } else if (c == '"') {
                in_string = !in_string;
            } else if (!in_string && (c == '{' || c == '[')) {
                ++depth;
            } else if (!in_string && (c == '}' || c == ']') && --depth == 0) {
                ++end;
                break;
            }
        }
        tell(Kind::arguments, std::min(end, text_.size()));
        std::smatch found;
        const std::size_t closed = at_;
        if (match(close_, &found)) {
            if (found[1] == std::string(options_.tools->section_end))
                at_ = closed + static_cast<std::size_t>(found.position(1));
        } else if (rest_is(unfinished_close_)) {
            at_ = text_.size();
        }
    }

    const ParserOptions options_;
    std::string text_;
    std::size_t at_ = 0;
    bool left_open_ = false;  // pairs that something else ended
    std::vector<Event> events_;
    std::regex head_, close_, section_end_, unfinished_close_, unfinished_section_end_;
};

}  // namespace espalier::output
