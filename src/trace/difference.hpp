// SPDX-License-Identifier: Apache-2.0
// Where two events part, in words: "rows[1].q_len (request 7): the trace has 5, this run 4".
#pragma once

#include <string>

#include "trace/step.hpp"

namespace espalier::trace {

// The first difference by the order of fields; empty: none.
std::string difference(const Submission& traced, const Submission& now);
std::string difference(const Step& traced, const Step& now);

}  // namespace espalier::trace
