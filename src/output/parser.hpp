// SPDX-License-Identifier: Apache-2.0
// Tells apart what a model's text is made of: reasoning, content and calls of functions, as the
// text comes. A state machine over a bounded buffer, driven by the tables of formats.hpp; what it
// tells is a function of the text alone, however it is cut.
//
// A call is told when its head is whole: the markers in their order, the name of a declared
// function, and the { of its arguments. What does not come so far stays content, to the byte, and
// what was told is never taken back. Arguments end where their JSON object does: a marker inside
// one of its strings is part of the string, so no text that a call carries can begin another call.
// White space and an unfinished marker behind a whole call are not told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "output/formats.hpp"

namespace espalier::output {

inline constexpr std::size_t kMaxNameBytes = 64;    // of a function, as OpenAI has it
inline constexpr std::size_t kMaxHeadBytes = 128;   // around the name, without its markers
inline constexpr std::size_t kMaxSpaceBytes = 64;   // at each place that may have white space
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
    };
    struct Head {
        std::string name, id;
    };
    class Cursor;

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
    enum class Match : std::uint8_t { yes, no, unfinished };
    Match match_head(Cursor& cursor, Head& head) const;
    void begin_call(const Head& head, std::size_t bytes, std::vector<Event>& out);
    void tell(Event::Kind kind, std::size_t bytes, std::vector<Event>& out);
    Event::Kind text_kind() const;

    const ParserOptions options_;
    State state_ = State::content;
    State around_ = State::content;  // of a section: what its text is if it is none
    std::string held_;
    std::size_t calls_ = 0;
    // Of the arguments so far.
    std::int64_t depth_ = 0;
    bool in_string_ = false, escaped_ = false;
};

}  // namespace espalier::output
