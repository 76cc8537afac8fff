// SPDX-License-Identifier: Apache-2.0
// Reads a trace line by line. The file is not trusted: every error names file and line, and memory
// is bounded by the longest line that is taken.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "trace/line.hpp"

namespace espalier::trace {

// A prompt of a million tokens takes 8 MB.
inline constexpr std::int64_t kMaxLineBytes = std::int64_t{1} << 25;

// End of a trace.
enum class Ending : std::uint8_t {
    finished,
    overflow,  // its end line says that the disk was too slow
    missing,   // no end line: its writer was killed, perhaps within a line
};

class Reader {
  public:
    static Expected<Reader> open(const std::string& path);
    static Expected<Reader> read(std::unique_ptr<std::istream> in, std::string name);

    const Header& header() const { return header_; }
    // The next event, none at the end of the trace (then ending() says how it came). The end line
    // is checked against what came before it, and is no event here.
    Expected<std::optional<Event>> next();
    Ending ending() const { return ending_; }

    // Place of what was read last: "run.jsonl, line 7". Lines count from 1, the header's.
    std::string place() const;

  private:
    Reader(std::unique_ptr<std::istream> in, std::string name)
        : in_(std::move(in)), name_(std::move(name)) {}
    // False: nothing is left. terminated_ tells whether the line had its newline.
    Expected<bool> read_line();
    Expected<void> check_end(const End& end);

    std::unique_ptr<std::istream> in_;
    std::string name_;
    std::string text_;
    bool terminated_ = true;
    std::int64_t line_ = 0;
    Header header_;
    End counted_;
    Ending ending_ = Ending::missing;
};

}  // namespace espalier::trace
