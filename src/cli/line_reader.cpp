// SPDX-License-Identifier: Apache-2.0
#include "cli/line_reader.hpp"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "cli/line_editor.hpp"

namespace espalier::cli {
namespace {

// Keys as they are pressed, none of them a signal, pastes between marks; as it was with its owner.
class RawTerminal {
  public:
    RawTerminal() {
        if (tcgetattr(STDIN_FILENO, &before_) != 0) return;
        termios raw = before_;
        raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
        raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        // Text typed during the last answer is still there to be read.
        changed_ = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
        std::fputs("\x1b[?2004h", stdout);
    }
    ~RawTerminal() {
        std::fputs("\x1b[?2004l", stdout);
        std::fflush(stdout);
        if (changed_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
    }
    RawTerminal(const RawTerminal&) = delete;
    RawTerminal& operator=(const RawTerminal&) = delete;

  private:
    termios before_ = {};
    bool changed_ = false;
};

int terminal_columns() {
    winsize size = {};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void show(const std::string& bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
}

}  // namespace

bool is_interactive() {
    const char* term = std::getenv("TERM");
    return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && term != nullptr &&
           std::string_view(term) != "dumb";
}

LineResult LineReader::edit(const std::string& prompt, const std::vector<std::string>& history) {
    const RawTerminal raw;
    LineEditor editor(history);
    while (true) {
        while (!typed_ahead_.empty()) {
            const LineEditor::Event event = editor.push(typed_ahead_.front());
            typed_ahead_.erase(0, 1);
            if (event == LineEditor::Event::editing) continue;
            if (event == LineEditor::Event::cleared) {
                show("\x1b[H\x1b[2J");
                continue;
            }
            show(editor.draw(prompt, terminal_columns()) + "\r\n");
            if (event == LineEditor::Event::accepted) return Line{editor.text()};
            if (event == LineEditor::Event::cancelled) return LineCancelled{};
            return NoMoreLines{};
        }
        show(editor.draw(prompt, terminal_columns()));
        char bytes[4096];
        const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return NoMoreLines{};
        typed_ahead_.assign(bytes, static_cast<std::size_t>(count));
    }
}

LineResult LineReader::next(const std::string& prompt, const std::vector<std::string>& history) {
    if (interactive_) return edit(prompt, history);
    std::string line;
    if (!std::getline(std::cin, line)) return NoMoreLines{};
    if (line.ends_with('\r')) line.pop_back();
    return Line{std::move(line)};
}

}  // namespace espalier::cli
