// SPDX-License-Identifier: Apache-2.0
// What output::Parser is held to: a plain reading of the whole text at once, the heads of calls by
// regular expressions.
#pragma once

#include <algorithm>
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
        const std::string block = quoted(trimmed_block(format));
        close_ = std::regex(space + block + space + "(" + quoted(format.call_end) + "|" +
                            quoted(format.section_end) + ")");
        section_end_ = std::regex(space + quoted(format.section_end));
        unfinished_section_end_ = std::regex(space + begun(format.section_end));
        unfinished_close_ =
            std::regex(space + "(?:" + begun(trimmed_block(format)) + "|" + block + space +
                       "(?:" + begun(format.call_end) + "|" + begun(format.section_end) + "))");
    }

    std::string run(const std::string& text) {
        text_ = text;
        at_ = 0;
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
        const std::string_view begin = options_.tools->section_begin;
        if (text_.compare(at_, begin.size(), begin) != 0) return false;
        const std::size_t before = at_;
        at_ += begin.size();
        if (!read_call()) {
            at_ = before;
            return false;
        }
        for (;;) {
            if (match(section_end_)) return true;
            if (read_call()) continue;
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
        read_arguments();
        return true;
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
    std::vector<Event> events_;
    std::regex head_, close_, section_end_, unfinished_close_, unfinished_section_end_;
};

}  // namespace espalier::output
