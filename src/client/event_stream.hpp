// SPDX-License-Identifier: Apache-2.0
// Cuts a body into server-sent events, wherever its bytes break (the WHATWG's rules: lines end by
// LF, CR or CRLF; data lines of one event are joined; comments and other fields are dropped).
// Pure, and bounded: what a server sends without ever ending an event is refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/failure.hpp"

namespace espalier::client {

class EventStream {
  public:
    // A chunk of an answer has a few hundred bytes; one with 20 logprobs per token about 10 kB.
    static constexpr std::size_t kMaxEventBytes = 1 << 20;

    // Appends the data of the events that these bytes complete.
    std::optional<Failure> push(std::string_view bytes, std::vector<std::string>& events);

  private:
    void end_line(std::vector<std::string>& events);

    std::string line_;
    std::string data_;
    bool has_data_ = false;
    bool after_return_ = false;  // a LF that follows ends no second line
};

}  // namespace espalier::client
