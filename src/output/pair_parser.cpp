// SPDX-License-Identifier: Apache-2.0
// The parser's states for arguments that are pairs of plain text: they are told as a JSON object.
#include <nlohmann/json.hpp>

#include "output/parser.hpp"

namespace espalier::output {
namespace {

constexpr std::size_t kMaxScalarBytes = 64;  // of a number, a boolean or null

// Inside the quotes of a JSON string.
std::string escaped(std::string_view text) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string made;
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            made += {'\\', c};
        } else if (c == '\n') {
            made += "\\n";
        } else if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
            made += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
        } else {
            made += c;
        }
    }
    return made;
}

// A number, a boolean or null that may stand there.
bool is_scalar(std::string_view text, ValueTypes types) {
    if (text.empty() || text.front() == '"' || text.front() == '{' || text.front() == '[')
        return false;
    const auto value = nlohmann::ordered_json::parse(text, nullptr, false);
    return !value.is_discarded() && (type_of(value) & types) != kNoValue;
}

}  // namespace

void Parser::begin_pairs(const std::string& function, std::vector<Event>& out) {
    function_ = function;
    pairs_ = 0;
    state_ = State::pairs;
    tell_text(Event::Kind::arguments, "{", out);
}

// The next pair's key, or the call's end. Anything else ends the call too, and is content.
bool Parser::scan_pairs(bool is_last, std::vector<Event>& out) {
    const PairFormat& format = options_.tools->pairs;
    Cursor key(held_, 0), end(held_, 0);
    end.spaces();
    const Match ends = end.literal(options_.tools->call_end);
    std::string_view name;
    key.spaces();
    Match begins = key.literal(format.key_begin);
    if (begins == Match::yes) begins = key.text_before({format.key_end}, name);
    if (begins == Match::yes) {
        key.literal(format.key_end);
        key.spaces();
        begins = key.literal(format.value_begin);
    }
    if (begins == Match::yes) {
        name = trimmed(name);
        const auto function = options_.types.find(function_);
        value_types_ = kAnyValue;
        if (function != options_.types.end())
            if (const auto found = function->second.find(name); found != function->second.end())
                value_types_ = found->second;
        tell_text(Event::Kind::arguments,
                  (pairs_++ == 0 ? "\"" : ", \"") + escaped(name) + "\": ", out);
        held_.erase(0, key.at());
        state_ = State::value;
        return true;
    }
    if (ends != Match::yes && (ends == Match::unfinished || begins == Match::unfinished)) {
        if (is_last) held_.clear();  // the call stays unfinished
        return false;
    }
    if (ends == Match::yes) held_.erase(0, end.at());
    tell_text(Event::Kind::arguments, "}", out);
    state_ = ends == Match::yes ? State::between : State::content;
    return true;
}

// Kind of the value: an object or a list by its first byte, a scalar when it is whole, a string
// otherwise; the parameter's schema permitting.
bool Parser::scan_value(bool is_last, std::vector<Event>& out) {
    const std::string_view marker = options_.tools->pairs.value_end;
    const auto becomes = [&](State state) {
        if (state == State::text_value) tell_text(Event::Kind::arguments, "\"", out);
        in_string_ = escaped_ = false;
        state_ = state;
        return true;
    };
    if (value_types_ == kStringValue) return becomes(State::text_value);
    Cursor cursor(held_, 0);
    cursor.spaces();
    if (cursor.at() == held_.size() && cursor.at() < kMaxSpaceBytes)
        return is_last && becomes(State::text_value);
    const char first = cursor.at() < held_.size() ? held_[cursor.at()] : ' ';
    if ((first == '{' && (value_types_ & kObjectValue) != kNoValue) ||
        (first == '[' && (value_types_ & kArrayValue) != kNoValue)) {
        held_.erase(0, cursor.at());
        return becomes(State::json_value);
    }
    const std::string_view rest =
        std::string_view(held_).substr(0, kMaxScalarBytes + marker.size());
    const std::size_t end = rest.find(marker);
    if (end == std::string_view::npos && rest.size() < kMaxScalarBytes + marker.size() && !is_last)
        return false;
    const std::string_view scalar = trimmed(rest.substr(0, end));
    if (end == std::string_view::npos || !is_scalar(scalar, value_types_))
        return becomes(State::text_value);
    tell_text(Event::Kind::arguments, scalar, out);
    held_.erase(0, end + marker.size());
    state_ = State::pairs;
    return true;
}

// End of the value in what is held, or the number of bytes that are value whatever comes.
std::size_t Parser::value_end(bool is_last, bool& found) {
    const std::string_view marker = options_.tools->pairs.value_end, held = held_;
    found = false;
    if (state_ == State::text_value) {
        const std::size_t end = held.find(marker);
        found = end != std::string_view::npos;
        return found ? end : held.size() - (is_last ? 0 : begun(held, marker));
    }
    for (std::size_t at = 0; at < held.size(); ++at) {
        const char c = held[at];
        if (in_string_) {
            if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
            continue;
        }
        const std::string_view rest = held.substr(at);
        found = rest.starts_with(marker);
        if (found || (marker.starts_with(rest) && !is_last)) return at;
        in_string_ = c == '"';
    }
    return held.size();
}

bool Parser::scan_value_text(bool is_last, std::vector<Event>& out) {
    bool found = false;
    const std::size_t bytes = value_end(is_last, found);
    if (state_ == State::json_value) {
        tell(Event::Kind::arguments, bytes, out);
    } else {
        tell_text(Event::Kind::arguments, escaped(std::string_view(held_).substr(0, bytes)), out);
        held_.erase(0, bytes);
    }
    if (!found) return false;
    if (state_ == State::text_value) tell_text(Event::Kind::arguments, "\"", out);
    held_.erase(0, options_.tools->pairs.value_end.size());
    state_ = State::pairs;
    return true;
}

}  // namespace espalier::output
