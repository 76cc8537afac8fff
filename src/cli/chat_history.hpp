// SPDX-License-Identifier: Apache-2.0
// What a user wrote in chats before, from one to the next: a JSON text per line, in a file that
// no other user may read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace espalier::cli {

class ChatHistory {
  public:
    // An empty path keeps nothing beyond this chat. What cannot be read is an error; a file that
    // is not there is an empty one.
    static Expected<ChatHistory> open(const std::filesystem::path& path);

    const std::vector<std::string>& lines() const { return lines_; }
    // A repetition of the last line is not added. After an error of the file memory has the line.
    Expected<void> add(const std::string& line);

    // $XDG_STATE_HOME/espalier/chat_history, ~/.local/state/… without it; empty without a home.
    static std::filesystem::path default_path();

    static constexpr std::size_t kMaxLines = 1000;  // the file is cut to these when it is opened
    static constexpr std::size_t kMaxBytes = 16 << 20;

  private:
    std::filesystem::path path_;
    std::vector<std::string> lines_;
};

}  // namespace espalier::cli
