// SPDX-License-Identifier: Apache-2.0
// Runs a recorded schedule again: the same submissions and cancellations between the same steps,
// the same trees, the same times. The scheduler makes its plans and the model its draws anew, and
// all of it must be what the trace says, step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.hpp"
#include "base/text_identity.hpp"
#include "engine/target.hpp"
#include "text/tokenizer.hpp"
#include "trace/reader.hpp"

namespace espalier::replay {

// Refuses a trace whose texts this build, machine and model need not give: names the field of the
// identity that differs, and both values. The release's number is not compared. here: the identity
// of this run, which has the trace's settings.
Expected<void> check_identity(const trace::Header& traced, const TextIdentity& here);

struct Replayed {
    std::int64_t steps = 0;
    std::int64_t requests = 0;
    std::int64_t tokens = 0;      // drawn, every one as in the trace
    std::int64_t unfinished = 0;  // requests that run or wait where the trace ends
    trace::Ending ending = trace::Ending::finished;
};

// Makes the target of a run, for the batch sizes of the header's settings and this many pages.
using MakeTarget =
    std::function<Expected<std::unique_ptr<engine::Target>>(std::int64_t page_count)>;

// Reads the trace to its end. An error names file, line and step, what differs and both values.
Expected<Replayed> replay(trace::Reader& reader, const MakeTarget& make_target,
                          const text::Tokenizer& tokenizer);

}  // namespace espalier::replay
