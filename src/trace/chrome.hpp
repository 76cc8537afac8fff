// SPDX-License-Identifier: Apache-2.0
// A trace as a timeline for chrome://tracing and Perfetto: steps with their phases nested in them,
// requests from submission to end, and counters of the batch's mix, pages and queue.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "trace/reader.hpp"
#include "trace/sink.hpp"

namespace espalier::trace {

// Reads the trace to its end and writes one JSON document. Returns how many steps are in it.
Expected<std::int64_t> write_chrome(Reader& reader, Sink& sink);

}  // namespace espalier::trace
