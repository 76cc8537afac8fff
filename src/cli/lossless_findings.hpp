// SPDX-License-Identifier: Apache-2.0
// Random workloads on a given model, each request held to itself alone and plainly, until the time
// is over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/terminal.hpp"
#include "lossless/check.hpp"
#include "runtime/runtime.hpp"

namespace espalier::cli {

struct LosslessFindings {
    std::int64_t workloads = 0, failed = 0;
    std::uint64_t failing_seed = 0;  // the first
    std::vector<std::string> first_failure;
    lossless::Coverage coverage;
    double seconds = 0;
};

// One workload at least, with rising seeds.
LosslessFindings run_workloads(std::uint64_t seed, double seconds, const lossless::Subject& target);
Table table_of(const LosslessFindings& findings);

// Recording that suits workloads, each of which has an engine of its own.
batch::CaptureOptions workload_capture(const runtime::LoadedModel& loaded, bool enforce_eager);

// Parts of an engine with the model's own drafters.
Expected<lossless::Subject::Parts> parts_with(const runtime::DrafterChoice& drafters,
                                              runtime::LoadedModel& loaded,
                                              const EngineSizes& sizes,
                                              const batch::CaptureOptions& capture,
                                              const text::Tokenizer& tokenizer);

}  // namespace espalier::cli
