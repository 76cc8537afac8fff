// SPDX-License-Identifier: Apache-2.0
// The parts of an engine on a loaded model: its target, on all ranks that the model lies on, and
// its drafters.
#pragma once

#include <memory>
#include <vector>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "engine/target.hpp"
#include "model/taps.hpp"
#include "runtime/drafters.hpp"
#include "runtime/loaded_model.hpp"
#include "speculate/drafter.hpp"
#include "text/tokenizer.hpp"

namespace espalier::runtime {

struct EngineParts {
    // Hidden states that drafters read, and what else outlives target and drafters.
    std::shared_ptr<model::TapMemory> taps;
    std::shared_ptr<void> ranks;  // null: one rank
    std::unique_ptr<engine::Target> target;
    std::vector<std::unique_ptr<speculate::Drafter>> drafters;  // in the order of names()
};

// Model and tokenizer outlive the parts.
Expected<EngineParts> make_engine_parts(LoadedModel& loaded, const DrafterChoice& drafters,
                                        const EngineSizes& sizes,
                                        const batch::CaptureOptions& capture,
                                        const text::Tokenizer& tokenizer);

}  // namespace espalier::runtime
