// SPDX-License-Identifier: Apache-2.0
#include "output/parser.hpp"

#include <algorithm>
#include <utility>

#include "output/cursor.hpp"

namespace espalier::output {
Parser::Parser(ParserOptions options) : options_(std::move(options)) {
    if (options_.reasoning != nullptr && options_.reasoning_open) state_ = State::opening;
}

// In slices: what is held moves with each transition, and a text may be nothing but markers.
void Parser::push(std::string_view text, std::vector<Event>& out) {
    constexpr std::size_t kSlice = 4096;
    for (; !text.empty(); text.remove_prefix(std::min(kSlice, text.size()))) {
        held_ += text.substr(0, kSlice);
        run(false, out);
    }
}

void Parser::finish(std::vector<Event>& out) { run(true, out); }

void Parser::run(bool is_last, std::vector<Event>& out) {
    while (!held_.empty() && step(is_last, out)) {
    }
}

bool Parser::step(bool is_last, std::vector<Event>& out) {
    switch (state_) {
        case State::opening:
            return open(is_last);
        case State::reasoning:
        case State::content:
            return scan_text(is_last, out);
        case State::section:
            return scan_section(is_last, out);
        case State::arguments:
            return scan_arguments(out);
        case State::closing:
            return scan_closing(is_last);
        case State::between:
            return scan_between(is_last, out);
        case State::pairs:
            return scan_pairs(is_last, out);
        case State::value:
            return scan_value(is_last, out);
        case State::text_value:
        case State::json_value:
            return scan_value_text(is_last, out);
    }
    return false;
}

Event::Kind Parser::text_kind() const {
    return state_ == State::reasoning ? Event::Kind::reasoning : Event::Kind::content;
}

void Parser::tell_text(Event::Kind kind, std::string_view text, std::vector<Event>& out) {
    if (text.empty()) return;
    if (!out.empty() && out.back().kind == kind)
        out.back().text += text;
    else
        out.push_back({.kind = kind, .text = std::string(text)});
}

// Tells the first bytes of what is held.
void Parser::tell(Event::Kind kind, std::size_t bytes, std::vector<Event>& out) {
    tell_text(kind, std::string_view(held_).substr(0, bytes), out);
    held_.erase(0, bytes);
}

// ---- text ---------------------------------------------------------------------------------------

bool Parser::open(bool is_last) {
    Cursor cursor(held_, 0);
    cursor.spaces();
    const Match match = cursor.literal(options_.reasoning->begin);
    if (match == Match::unfinished && !is_last) return false;
    if (match == Match::yes) held_.erase(0, cursor.at());
    state_ = State::reasoning;
    return true;
}

bool Parser::scan_text(bool is_last, std::vector<Event>& out) {
    const bool reasons = state_ == State::reasoning;
    const std::string_view end = reasons ? options_.reasoning->end : std::string_view();
    const bool looks_for_calls =
        options_.tools != nullptr && (!reasons || options_.reasoning->ended_by_calls);
    const std::string_view section =
        looks_for_calls ? options_.tools->opening() : std::string_view();
    const auto place = [&](std::string_view marker) {
        return marker.empty() ? std::string::npos : held_.find(marker);
    };
    const std::size_t end_at = place(end), section_at = place(section);
    if (const std::size_t first = std::min(end_at, section_at); first != std::string::npos) {
        tell(text_kind(), first, out);
        if (first == end_at) {
            held_.erase(0, end.size());
            state_ = State::content;
        } else {
            around_ = std::exchange(state_, State::section);
        }
        return true;
    }
    std::size_t kept = 0;
    if (!is_last)
        for (const std::string_view marker : {end, section})
            if (!marker.empty()) kept = std::max(kept, begun(held_, marker));
    tell(text_kind(), held_.size() - kept, out);
    return false;
}

// ---- calls --------------------------------------------------------------------------------------

// The name of a declared function, or functions.NAME:NUMBER.
bool Parser::read_head(std::string_view text, Head& head) const {
    text = trimmed(text);
    std::string_view name = text;
    if (options_.tools->numbered) {
        constexpr std::string_view kPrefix = "functions.";
        const std::size_t colon = name.rfind(':');
        if (colon == std::string_view::npos || colon + 1 == name.size()) return false;
        const std::string_view number = name.substr(colon + 1);
        if (!std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; })) return false;
        name = name.substr(0, colon);
        if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
        head.id = text;
    }
    head.name = name;
    return std::ranges::find(options_.functions, name) != options_.functions.end();
}

Match Parser::match_head(Cursor& cursor, Head& head) const {
    const ToolFormat& format = *options_.tools;
    for (const std::string_view part : {format.call_begin, format.before_name}) {
        cursor.spaces();
        if (const Match match = cursor.literal(part); match != Match::yes) return match;
    }
    std::string_view text;
    if (format.has_pairs()) {
        const Match match = cursor.text_before({format.pairs.key_begin, format.call_end}, text);
        return match == Match::yes && !read_head(text, head) ? Match::no : match;
    }
    if (const Match match = cursor.text_before({format.after_name}, text); match != Match::yes)
        return match;
    if (!read_head(text, head)) return Match::no;
    cursor.literal(format.after_name);
    cursor.spaces();
    Cursor behind = cursor;
    return behind.literal("{");
}

void Parser::begin_call(const Head& head, std::size_t bytes, std::vector<Event>& out) {
    out.push_back({.kind = Event::Kind::call_begin, .text = head.name, .id = head.id});
    held_.erase(0, bytes);
    ++calls_;
    depth_ = 0;
    in_string_ = escaped_ = false;
    state_ = State::arguments;
    if (options_.tools->has_pairs()) begin_pairs(head.name, out);
}

bool Parser::scan_section(bool is_last, std::vector<Event>& out) {
    Cursor cursor(held_, options_.tools->section_begin.size());
    Head head;
    const Match match = match_head(cursor, head);
    if (match == Match::unfinished && !is_last) return false;
    if (match == Match::yes) {
        begin_call(head, cursor.at(), out);
        return true;
    }
    state_ = around_;
    tell(text_kind(), options_.tools->opening().size(), out);
    return true;
}

bool Parser::scan_arguments(std::vector<Event>& out) {
    std::size_t at = 0;
    bool whole = false;
    while (at < held_.size() && !whole) {
        const char c = held_[at++];
        if (in_string_) {
            if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
        } else if (c == '"') {
            in_string_ = true;
        } else if (c == '{' || c == '[') {
            ++depth_;
        } else if (c == '}' || c == ']') {
            whole = --depth_ == 0;
        }
    }
    tell(Event::Kind::arguments, at, out);
    if (whole) state_ = State::closing;
    return whole;
}

// Models leave call_end out: a section's end also ends its last call, and the next call the one
// before it.
bool Parser::scan_closing(bool is_last) {
    const ToolFormat& format = *options_.tools;
    Cursor cursor(held_, 0);
    cursor.spaces();
    Match match = cursor.literal(trimmed(format.after_arguments));
    Match ends_section = Match::no;
    if (match == Match::yes) {
        cursor.spaces();
        Cursor other = cursor;
        match = cursor.literal(format.call_end);
        ends_section = other.literal(format.section_end);
        if (ends_section == Match::yes) cursor = other;
    }
    const bool unfinished = match == Match::unfinished || ends_section == Match::unfinished;
    if (match != Match::yes && ends_section != Match::yes && unfinished && !is_last) return false;
    state_ = ends_section == Match::yes ? State::content : State::between;
    if (match == Match::yes || ends_section == Match::yes)
        held_.erase(0, cursor.at());
    else if (unfinished)
        held_.clear();
    return true;
}

bool Parser::scan_between(bool is_last, std::vector<Event>& out) {
    Cursor section(held_, 0), call(held_, 0);
    Head head;
    section.spaces();
    // Without sections the next call is what may still come.
    const bool has_sections = !options_.tools->section_end.empty();
    Match ends =
        section.literal(has_sections ? options_.tools->section_end : options_.tools->call_begin);
    if (!has_sections && ends == Match::yes) ends = Match::no;
    const Match begins = match_head(call, head);
    if (ends == Match::yes) {
        held_.erase(0, section.at());
        state_ = State::content;
    } else if (begins == Match::yes) {
        begin_call(head, call.at(), out);
    } else if (ends == Match::unfinished || (begins == Match::unfinished && !is_last)) {
        if (!is_last) return false;
        held_.clear();
    } else {
        state_ = State::content;
    }
    return true;
}

}  // namespace espalier::output
