// SPDX-License-Identifier: Apache-2.0
// Between the engine's words and the trace's: requests and settings, both ways.
#pragma once

#include <string>
#include <vector>

#include "engine/receiver.hpp"
#include "engine/request.hpp"
#include "engine/stepper.hpp"
#include "grammar/specification.hpp"
#include "trace/step.hpp"

namespace espalier::replay {

trace::Settings settings_of(const engine::StepperSettings& settings,
                            std::vector<std::string> drafters);
// Without a step time: trees are prescribed.
engine::StepperSettings stepper_settings_of(const trace::Settings& settings);

// As its check left it: max_tokens cut, end tokens filled in. Checking it again changes nothing.
trace::Submission submission_of(const engine::CheckedRequest& checked, std::int64_t first_request,
                                schedule::Time now);
// Without its grammar, which must be compiled: from what specification_of() makes of it.
engine::Request request_of(const trace::Submission& submission);
trace::Grammar grammar_of(const grammar::Specification& specification);
Expected<grammar::Specification> specification_of(const trace::Grammar& grammar);

trace::Ended ended_of(std::int64_t request, const engine::Ending& ending,
                      const accept::Usage& usage);

}  // namespace espalier::replay
