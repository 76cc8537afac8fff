// SPDX-License-Identifier: Apache-2.0
#include "replay/traced_run.hpp"

#include <stdexcept>

#include "engine/grammar_drafter.hpp"
#include "engine/model_target.hpp"
#include "lossless/recorder.hpp"
#include "replay/convert.hpp"
#include "replay/recorder.hpp"
#include "speculate/ngram.hpp"
#include "trace/samples.hpp"

namespace espalier::replay {
namespace {

using lossless::Workload;
using lossless::WorkloadRequest;
using Tokens = std::vector<std::int32_t>;

// Runs the workload once; with texts that the random drafter knows, and watched, or neither.
std::vector<Tokens> run(const Workload& work, const lossless::Subject& target,
                        const std::vector<Tokens>& known, engine::StepObserver* observer,
                        TracedRun& sums) {
    schedule::Time now = 0;
    auto made = engine::ModelTarget::create(target.model, work.settings.schedule.page_count);
    if (!made) throw std::runtime_error(made.error().message);
    engine::StepperParts parts{
        std::move(*made), target.tokenizer, {}, [&now] { return now += 1000; }};
    parts.observer = observer;
    if (work.ngram)
        parts.drafters.push_back(
            std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    if (work.random_drafter && observer != nullptr)
        parts.drafters.push_back(std::make_unique<lossless::RandomDrafter>(work.seed, work.drafter,
                                                                           known, work.palette));
    if (work.grammar_drafter)
        parts.drafters.push_back(std::make_unique<engine::GrammarDrafter>(target.tokenizer));
    auto stepper = engine::Stepper::create(std::move(parts), work.settings);
    if (!stepper) throw std::runtime_error(stepper.error().message);
    std::vector<std::shared_ptr<lossless::Recorder>> recorders;
    std::vector<std::vector<schedule::RequestId>> ids(work.requests.size());
    for (const WorkloadRequest& one : work.requests)
        recorders.push_back(std::make_shared<lossless::Recorder>(one.request.choices));
    bool more = true;
    for (int step = 0; step < 20000 && (more || !(*stepper)->idle()); ++step) {
        more = false;
        for (std::size_t i = 0; i < work.requests.size(); ++i) {
            const WorkloadRequest& one = work.requests[i];
            more = more || one.arrival > step;
            if (one.arrival == step) {
                auto checked = engine::check_request(one.request, (*stepper)->request_limits(),
                                                     target.tokenizer);
                if (!checked) throw std::runtime_error(checked.error().message);
                ids[i] = (*stepper)->submit(std::move(*checked), recorders[i]);
            }
            if (one.cancelled == step)
                (*stepper)->cancel(ids[i][static_cast<std::size_t>(one.cancelled_choice)]);
        }
        (*stepper)->step();
    }
    std::vector<Tokens> texts;
    for (std::size_t i = 0; i < work.requests.size(); ++i)
        for (std::int32_t choice = 0; choice < work.requests[i].request.choices; ++choice) {
            const lossless::RecordedChoice& got = recorders[i]->choice(choice);
            texts.push_back(work.requests[i].request.prompt);
            for (const auto& token : got.output.tokens) texts.back().push_back(token.token);
            sums.tokens += got.usage.completion_tokens;
        }
    sums.preemptions = (*stepper)->scheduler().totals().preemptions;
    return texts;
}

}  // namespace

TracedRun run_traced(std::uint64_t seed) {
    const engine::Family family = seed % 2 == 0 ? engine::Family::v2 : engine::Family::v3;
    return run_traced(lossless::random_workload(seed, engine::tiny_target(family).target()),
                      family);
}

TracedRun run_traced(const Workload& work, engine::Family family) {
    TracedRun plain, traced;
    traced.family = family;
    const lossless::Subject target = engine::tiny_target(family).target();
    const std::vector<Tokens> texts = run(work, target, {}, nullptr, plain);
    trace::Header header = trace::sample_header();
    header.settings = settings_of(work.settings, {});
    auto writer = trace::Writer::create(std::make_unique<trace::StringSink>(traced.text), header);
    Recorder recorder(std::move(*writer));
    run(work, target, texts, &recorder, traced);
    const auto end = recorder.finish();
    if (!end) throw std::runtime_error(end.error().message);
    return traced;
}

}  // namespace espalier::replay
