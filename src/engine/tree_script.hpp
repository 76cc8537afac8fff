// SPDX-License-Identifier: Apache-2.0
// Trees that are prescribed instead of drafted: a recorded schedule runs again with the trees it
// had. Asked by Speculation once per running request and step.
#pragma once

#include "speculate/drafter.hpp"
#include "speculate/tree.hpp"

namespace espalier::engine {

class TreeScript {
  public:
    virtual ~TreeScript() = default;
    // Null: the root alone. One that does not fit the offer or begins with another root counts as
    // the root alone: scripts may come from files.
    virtual const speculate::Tree* tree(RequestSlot request) = 0;
    // True if the step's windows are reserved (schedule::Windows), as they were when it was
    // recorded: that decides which pages are evicted.
    virtual bool reserves_windows() const { return true; }
};

}  // namespace espalier::engine
