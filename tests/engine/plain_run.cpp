// SPDX-License-Identifier: Apache-2.0
#include "engine/plain_run.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "model/sequence.hpp"

namespace espalier::engine {
namespace {

class PlainRun {
  public:
    PlainRun(TinyTarget& target, const CheckedRequest& checked, std::int32_t choice)
        : model_(**target.model),
          checked_(checked),
          choice_(choice),
          progress_(checked.rules, *target.tokenizer, checked.request.prompt) {
        const auto length = static_cast<std::int64_t>(checked.request.prompt.size());
        auto sequence =
            model::Sequence::create(model_, length, length + checked.rules.options().max_tokens);
        if (!sequence) throw std::runtime_error(sequence.error().message);
        sequence_ = std::move(*sequence);
    }

    Output operator()() {
        if (feed_prompt()) {
            while (!progress_.finish()) {
                const ops::Draw drawn = draw();
                if (drawn.flag == ops::DrawFlag::nothing_left)
                    progress_.end(accept::FinishReason::nothing_left, emission_);
                else if (drawn.flag == ops::DrawFlag::bad_logits)
                    progress_.end(accept::FinishReason::bad_numbers, emission_);
                else if (!progress_.commit(drawn, top_, emission_))
                    feed(std::array{drawn.token});
            }
        }
        output_.tokens = emission_.tokens;
        output_.top = emission_.top;
        output_.text = emission_.text;
        output_.finish = *progress_.finish();
        return output_;
    }

  private:
    // False when a number was not finite: the request has failed.
    bool feed(std::span<const std::int32_t> tokens) {
        const auto fed = sequence_.feed(model_, tokens, true);
        if (fed) return true;
        const auto flags = model_.nonfinite();
        if (std::count(flags.begin(), flags.end(), 0) == std::ssize(flags))
            throw std::runtime_error(fed.error().message);
        progress_.end(accept::FinishReason::bad_numbers, emission_);
        return false;
    }

    bool feed_prompt() {
        const std::vector<std::int32_t>& prompt = checked_.request.prompt;
        const auto& asked = checked_.rules.options().prompt_top_logprobs;
        if (!asked) return feed(prompt);
        for (std::size_t i = 0; i < prompt.size(); ++i) {
            if (!feed(std::array{prompt[i]})) return false;
            if (i + 1 == prompt.size()) break;
            ops::NodeSampling sampling;
            sampling.wanted = prompt[i + 1];
            output_.prompt_logprobs.push_back(sample(sampling, *asked).logprob);
            output_.prompt_tops.insert(output_.prompt_tops.end(), top_.begin(), top_.end());
        }
        return true;
    }

    ops::Draw draw() {
        ops::NodeSampling sampling = checked_.sampling.node();
        sampling.position = static_cast<std::int32_t>(sequence_.length());
        sampling.choice = choice_;
        sampling.logprob = checked_.request.logprobs;
        sampling.banned = progress_.banned_at(0);
        accept::NodeCounts counts;
        if (checked_.sampling.counts_tokens()) counts = progress_.counts_at({});
        sampling.committed_counts = counts.committed;
        return sample(sampling, checked_.rules.options().top_logprobs);
    }

    ops::Draw sample(ops::NodeSampling sampling, std::int32_t top_count) {
        static const auto backend = ops::make_reference_backend(best_cpu_variant());
        static ThreadPool pool(1);
        static Arena arena(*Buffer::host(std::size_t{1} << 22));
        OpContext context{pool, arena};
        top_.assign(static_cast<std::size_t>(top_count), {});
        sampling.top = top_;
        ops::Draw draw;
        backend->sample_nodes(context, model_.last_logits(), &sampling, &draw);
        return draw;
    }

    model::DeepseekModel& model_;
    const CheckedRequest& checked_;
    std::int32_t choice_;
    accept::RequestProgress progress_;
    model::Sequence sequence_;
    accept::Emission emission_;
    std::vector<accept::TokenLogprob> top_;
    Output output_;
};

}  // namespace

Output run_plain(TinyTarget& target, const CheckedRequest& checked, std::int32_t choice) {
    return PlainRun(target, checked, choice)();
}

}  // namespace espalier::engine
