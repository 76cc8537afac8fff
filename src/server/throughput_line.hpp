// SPDX-License-Identifier: Apache-2.0
// The line that the log gets every ten seconds, and one about drafts: rates since the last line.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/status.hpp"

namespace espalier::server {

class ThroughputLine {
  public:
    // None: nothing happened since the last line, which said so already.
    std::vector<std::string> lines(const engine::EngineStatus& status, double seconds);

  private:
    engine::EngineStatus last_;
    bool was_idle_ = true;
};

}  // namespace espalier::server
