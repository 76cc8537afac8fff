// SPDX-License-Identifier: Apache-2.0
// What a client asks of the engine, as plain data, and the check that every request passes once, at
// the edge.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accept/constraint.hpp"
#include "accept/output_rules.hpp"
#include "accept/sampling_parameters.hpp"
#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "grammar/compiler.hpp"
#include "schedule/request.hpp"
#include "speculate/drafter.hpp"
#include "text/tokenizer.hpp"

namespace espalier::engine {

inline constexpr std::int32_t kMaxChoices = 128;
inline constexpr std::int32_t kPrescribedDepth = 4;

struct Request {
    std::vector<std::int32_t> prompt;
    accept::SamplingOptions sampling;
    accept::OutputOptions output;
    std::int32_t choices = 1;                         // parallel answers to the one prompt
    std::int32_t priority = 0;                        // smaller goes first
    schedule::Time deadline = schedule::kNoDeadline;  // nanoseconds on the engine's clock
    std::uint64_t salt = 0;                           // prompts of other salts never share pages
    // Speculation decides how soon the output is there, never what it is. true: as far as it is
    // measured to pay (auto); false: off.
    bool speculate = true;
    // Not 0: in place of what pays, in every step: levels of drafts below the root, nodes of a
    // level that a draft model goes on from, drafts in all. Where one is given, the others are
    // kPrescribedDepth, 1 and depth × width.
    std::int32_t draft_depth = 0, draft_width = 0, draft_nodes = 0;
    // The trees that are verified for it go to its receiver (verified_tree.hpp).
    bool report_trees = false;
    // false: the tokens' logprobs are not asked for; they are NaN unless top_logprobs are wanted,
    // and draws are cheaper.
    bool logprobs = true;
    // Not empty: these are what the output is made of, whatever the model would draw, with their
    // logprobs: to score a known text, or to measure on one. Its end is max_tokens, unless it meets
    // a stop condition before. Goes with no min_tokens, which would ban some of them.
    std::vector<std::int32_t> forced_output;
    // Expected output, for drafters that read texts (speculate::Drafter::expect); empty: none is.
    std::vector<std::int32_t> expected_output;
    // Form of the answer, compiled before it is submitted; null: anything. It alone says where
    // the text may end, so it goes with neither ignore_eos nor min_tokens nor forced_output. A stop
    // string or stop token of the request still cuts the text where it is met.
    std::shared_ptr<const grammar::CompiledGrammar> grammar;
    // End and length limit of the reasoning before the answer; none: all is answer. The
    // grammar begins behind it. Usage::reasoning_tokens counts it.
    std::optional<accept::ReasoningRule> reasoning;

    // Names that its sender gives it, for traces: a name and a W3C traceparent; empty: none.
    std::string request_id, traceparent;

    bool is_constrained() const { return grammar != nullptr || reasoning.has_value(); }
};

// Limits that requests are held against: the engine's sizes, and the model's ids.
struct RequestLimits {
    std::int64_t vocabulary = 0;
    EngineSizes sizes;
    std::vector<std::int32_t> eos_token_ids;
};

// A request past the edge: every number in range, max_tokens cut to the room that the prompt
// leaves, the checkpoint's eos tokens where it named none.
struct CheckedRequest {
    Request request;
    accept::SamplingParameters sampling;
    accept::OutputRules rules;
    std::optional<speculate::DraftShape> drafts = {};  // prescribed; none: off, or what pays
};

// Refuses what can never run here, whatever other requests do; it is not checked again. An error is
// of kind invalid, has the field's name and says both numbers. Thread-safe; the tokenizer must
// outlive the request.
Expected<CheckedRequest> check_request(Request request, const RequestLimits& limits,
                                       const text::Tokenizer& tokenizer);

}  // namespace espalier::engine
