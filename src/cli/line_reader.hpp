// SPDX-License-Identifier: Apache-2.0
// Lines of a user: edited on a terminal, as they come from a pipe or a file.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace espalier::cli {

struct Line {
    std::string text;
};
struct LineCancelled {};  // Ctrl-C
struct NoMoreLines {};
using LineResult = std::variant<Line, LineCancelled, NoMoreLines>;

// Both ends are a terminal that knows escape sequences.
bool is_interactive();

// On standard input and output.
class LineReader {
  public:
    // prompt and history count on a terminal only.
    LineResult next(const std::string& prompt, const std::vector<std::string>& history);

  private:
    LineResult edit(const std::string& prompt, const std::vector<std::string>& history);

    const bool interactive_ = is_interactive();
    std::string typed_ahead_;  // behind the last line's end
};

}  // namespace espalier::cli
