// SPDX-License-Identifier: Apache-2.0
// Editing one line, in the keys that readline made usual: bytes of a terminal in, a picture of the
// line out. Pure: it reads and writes nothing. (Our own, 250 lines: readline is GPL, and libedit
// would be the binary's only shared library beside the C++ runtime.)
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::cli {

class LineEditor {
  public:
    // Lines that Up and Down go through, the oldest first.
    explicit LineEditor(std::vector<std::string> history = {});

    enum class Event {
        editing,
        accepted,   // Enter
        cancelled,  // Ctrl-C
        ended,      // Ctrl-D on an empty line
        cleared,    // Ctrl-L: the screen is to be wiped
    };
    Event push(char byte);
    // UTF-8. A line may have line ends in it: pasted, by Alt-Enter, or after a backslash.
    std::string text() const;

    // Draws the line over itself, within `columns`: what does not fit scrolls sideways.
    std::string draw(std::string_view prompt, int columns) const;

    static constexpr std::size_t kMaxPoints = 1 << 20;  // of a line; more is not taken

  private:
    enum class State { plain, escape, sequence };
    Event on_control(char byte);
    void on_escaped(char byte);
    void on_sequence(const std::string& keys);
    void on_text_byte(char byte);
    Event enter();

    void insert(char32_t point);
    void erase(std::size_t from, std::size_t to);  // into what Ctrl-Y brings back
    void recall(std::size_t place);
    std::size_t left_of(std::size_t place) const;
    std::size_t right_of(std::size_t place) const;
    std::size_t word_left() const;
    std::size_t word_right() const;

    std::vector<std::u32string> lines_;  // the history, and behind it the line being written
    std::size_t line_ = 0;               // which of them is shown
    std::u32string text_;
    std::size_t cursor_ = 0;
    std::u32string killed_;
    State state_ = State::plain;
    bool pasting_ = false;
    std::string sequence_;  // of an escape sequence
    std::string utf8_;      // of a code point that is not whole
};

// Columns that a code point takes: 0 (combining), 1 or 2 (East Asian).
int columns_of(char32_t point);

}  // namespace espalier::cli
