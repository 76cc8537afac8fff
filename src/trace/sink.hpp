// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a trace go. Called by the writer's thread alone, and may take its time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::trace {

class Sink {
  public:
    virtual ~Sink() = default;
    // All of it, handed to the operating system on return.
    virtual Expected<void> write(std::string_view bytes) = 0;
};

// A new file, or an old one emptied.
Expected<std::unique_ptr<Sink>> open_file(const std::string& path);

}  // namespace espalier::trace
