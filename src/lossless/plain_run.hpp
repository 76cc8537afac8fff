// SPDX-License-Identifier: Apache-2.0
// What a request's output is, plainly: the request alone, without cache, batch, tree or chunks, one
// token at a time, drawn on the host by the plain version of the sampler. Where its reasoning and
// its grammar stand is found anew for every token: by looking through all before it, and with a
// matcher that begins at the beginning. The engine must give these bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accept/request_progress.hpp"
#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "base/op_context.hpp"
#include "batch/captured_steps.hpp"
#include "engine/request.hpp"
#include "engine/target.hpp"
#include "grammar/compiler.hpp"
#include "model/deepseek.hpp"
#include "model/taps.hpp"
#include "ops/ops.hpp"
#include "schedule/scheduler.hpp"
#include "speculate/drafter.hpp"
#include "text/tokenizer.hpp"

namespace espalier::lossless {

// Borrowed; the model has no other user meanwhile.
struct Subject {
    model::DeepseekModel& model;
    const text::Tokenizer& tokenizer;
    // This many of the vocabulary's last ids compute numbers that are not finite, because a test
    // made them so: a request that commits one of them must fail, and no other may.
    std::int32_t poisoned = 0;
    // The parts of an engine, for a model that has drafters of its own: a target whose cache has
    // the drafters' layers, and the hidden states they read, in memory that outlives both.
    struct Parts {
        std::shared_ptr<void> memory;
        std::unique_ptr<engine::Target> target;
        model::Taps taps;
        std::vector<std::unique_ptr<speculate::Drafter>> drafters;
    };
    std::function<Expected<Parts>(const schedule::SchedulerOptions&)> make_parts = {};
    // Another target for engines without drafters of their own: one whose model lies on several
    // ranks, where `model` is whole. Null: a target of the model itself.
    std::function<Expected<std::unique_ptr<engine::Target>>(const schedule::SchedulerOptions&)>
        make_target = {};
    batch::CaptureOptions capture = {};     // of the engines' steps
    grammar::Compiler* compiler = nullptr;  // for requests with grammars; null: there are none

    std::int32_t vocabulary() const { return static_cast<std::int32_t>(model.config().vocab_size); }
};

struct Output : accept::Emission {
    accept::Finish finish;
    std::vector<float> prompt_logprobs;
    std::vector<accept::TokenLogprob> prompt_tops;
    std::int64_t reasoning_tokens = 0;
};

class PlainRunner {
  public:
    explicit PlainRunner(const Subject& subject);
    // absorbed: everything is, as under prefill_segment = 0. An error is one of the model's: it
    // refused a batch.
    Expected<Output> run(const engine::CheckedRequest& checked, std::int32_t choice,
                         bool absorbed = false);

  private:
    Subject subject_;
    CpuDevice host_{1};
    std::unique_ptr<ops::Backend> backend_;
    Arena arena_;  // empty: the plain sampler takes its memory where it is
};

}  // namespace espalier::lossless
