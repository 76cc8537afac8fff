// SPDX-License-Identifier: Apache-2.0
// Tells apart what a model's text is made of: reasoning, content and calls of functions, as the
// text comes. A state machine over a bounded buffer, driven by the tables of formats.hpp; what it
// tells is a function of the text alone, however it is cut.
//
// A call is told when its head is whole: the markers in their order, the name of a declared
// function, and the { of its arguments or what a first pair begins with. What does not come so far
// stays content, to the byte, and what was told is never taken back. Arguments end where their JSON
// object does: a marker inside one of its strings is part of the string, so no text that a call
// carries can begin another call. Pairs are told as the JSON object that they stand for; a string
// among them has no quotes, so there the first value_end ends it, and text that the model repeats
// can end a call and begin another. White space and an unfinished marker behind a whole call are
// not told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "output/cursor.hpp"
#include "output/formats.hpp"
#include "output/value_types.hpp"

namespace espalier::output {

inline constexpr std::size_t kMaxNameBytes = 64;    // of a function, as OpenAI has it
inline constexpr std::size_t kMaxHeldBytes = 1024;  // of text that is not told yet

struct Event {
    enum class Kind : std::uint8_t { reasoning, content, call_begin, arguments };
    Kind kind = Kind::content;
    std::string text = {};  // the next piece; of call_begin the function's name
    std::string id = {};    // of call_begin, where the text has one
};

struct ParserOptions {
    const ToolFormat* tools = nullptr;   // null: calls are not looked for
    std::vector<std::string> functions;  // those declared
    // Types of each function's parameters, where arguments are pairs; others may be anything.
    std::map<std::string, std::map<std::string, ValueTypes, std::less<>>, std::less<>> types = {};
    const ReasoningFormat* reasoning = nullptr;
    bool reasoning_open = false;  // the text begins in its reasoning

    bool parses() const { return tools != nullptr || reasoning_open; }
};

class Parser {
  public:
    explicit Parser(ParserOptions options);

    // Events are appended.
    void push(std::string_view text, std::vector<Event>& out);
    // The text has ended.
    void finish(std::vector<Event>& out);
    std::size_t calls() const { return calls_; }
    std::size_t held_bytes() const { return held_.size(); }

  private:
    enum class State : std::uint8_t {
        opening,  // reasoning is open, and the text may repeat its begin marker
        reasoning,
        content,
        section,  // held_ begins with section_begin
        arguments,
        closing,  // the arguments are whole
        between,  // a call is whole
        pairs,    // between the pairs of a call's arguments
        value,    // of a pair: what it is, is not known yet
        text_value,
        json_value,
    };
    struct Head {
        std::string name, id;
    };

    void run(bool is_last, std::vector<Event>& out);
    // One transition; false: more text is needed.
    bool step(bool is_last, std::vector<Event>& out);
    bool open(bool is_last);
    bool scan_text(bool is_last, std::vector<Event>& out);
    bool scan_section(bool is_last, std::vector<Event>& out);
    bool scan_arguments(std::vector<Event>& out);
    bool scan_closing(bool is_last);
    bool scan_between(bool is_last, std::vector<Event>& out);
    bool read_head(std::string_view text, Head& head) const;
    Match match_head(Cursor& cursor, Head& head) const;
    void begin_call(const Head& head, std::size_t bytes, std::vector<Event>& out);
    void tell(Event::Kind kind, std::size_t bytes, std::vector<Event>& out);
    static void tell_text(Event::Kind kind, std::string_view text, std::vector<Event>& out);
    // Defined in pair_parser.cpp.
    void begin_pairs(const std::string& function, std::vector<Event>& out);
    bool scan_pairs(bool is_last, std::vector<Event>& out);
    bool scan_value(bool is_last, std::vector<Event>& out);
    bool scan_value_text(bool is_last, std::vector<Event>& out);
    std::size_t value_end(bool is_last, bool& found);
    Event::Kind text_kind() const;

    const ParserOptions options_;
    State state_ = State::content;
    State around_ = State::content;  // of a section: what its text is if it is none
    std::string held_;
    std::size_t calls_ = 0;
    // Depth in the JSON of a call's arguments at the text.
    std::int64_t depth_ = 0;
    bool in_string_ = false, escaped_ = false;
    // The call whose pairs are being read, and how many were.
    std::string function_;
    std::size_t pairs_ = 0;
    ValueTypes value_types_ = kAnyValue;
};

}  // namespace espalier::output
