// SPDX-License-Identifier: Apache-2.0
#include "lossless/plain_run.hpp"

#include <array>
#include <utility>

#include "model/sequence.hpp"

namespace espalier::lossless {
namespace {

class PlainRun {
  public:
    PlainRun(const Subject& subject, const ops::Backend& backend, OpContext context,
             const engine::CheckedRequest& checked, std::int32_t choice, model::Sequence sequence)
        : model_(subject.model),
          backend_(backend),
          context_(context),
          checked_(checked),
          choice_(choice),
          progress_(checked.rules, subject.tokenizer, checked.request.prompt),
          sequence_(std::move(sequence)) {}

    Expected<Output> operator()() {
        ESPALIER_RETURN_IF_ERROR(feed_prompt());
        while (!progress_.finish()) {
            const ops::Draw drawn = draw();
            if (drawn.flag == ops::DrawFlag::nothing_left)
                progress_.end(accept::FinishReason::nothing_left, output_);
            else if (drawn.flag == ops::DrawFlag::bad_logits)
                progress_.end(accept::FinishReason::bad_numbers, output_);
            else if (!progress_.commit(drawn, top_, output_))
                ESPALIER_RETURN_IF_ERROR(feed(std::array{drawn.token}));
        }
        output_.finish = *progress_.finish();
        return output_;
    }

  private:
    // A number that is not finite ends the request.
    Expected<void> feed(std::span<const std::int32_t> tokens) {
        ESPALIER_ASSIGN_OR_RETURN(const model::Fed fed, sequence_.feed(model_, tokens, true));
        if (fed.nonfinite) progress_.end(accept::FinishReason::bad_numbers, output_);
        logits_ = fed.logits;
        return {};
    }

    Expected<void> feed_prompt() {
        const std::vector<std::int32_t>& prompt = checked_.request.prompt;
        const auto& asked = checked_.rules.options().prompt_top_logprobs;
        if (!asked) return feed(prompt);
        for (std::size_t i = 0; i < prompt.size(); ++i) {
            ESPALIER_RETURN_IF_ERROR(feed(std::array{prompt[i]}));
            if (progress_.finish() || i + 1 == prompt.size()) break;
            ops::NodeSampling sampling;
            sampling.wanted = prompt[i + 1];
            output_.prompt_logprobs.push_back(sample(sampling, *asked).logprob);
            output_.prompt_tops.insert(output_.prompt_tops.end(), top_.begin(), top_.end());
        }
        return {};
    }

    ops::Draw draw() {
        ops::NodeSampling sampling = checked_.sampling.node();
        sampling.position = static_cast<std::int32_t>(sequence_.length());
        sampling.choice = choice_;
        sampling.logprob = checked_.request.logprobs;
        if (const auto& forced = checked_.request.forced_output; !forced.empty())
            sampling.wanted = forced[static_cast<std::size_t>(progress_.usage().completion_tokens)];
        sampling.banned = progress_.banned_at(0);
        accept::NodeCounts counts;
        if (checked_.sampling.counts_tokens()) counts = progress_.counts_at({});
        sampling.committed_counts = counts.committed;
        return sample(sampling, checked_.rules.options().top_logprobs);
    }

    ops::Draw sample(ops::NodeSampling sampling, std::int32_t top_count) {
        top_.assign(static_cast<std::size_t>(top_count), {});
        sampling.top = top_;
        ops::Draw draw;
        backend_.sample_nodes(context_, logits_, &sampling, &draw);
        return draw;
    }

    model::DeepseekModel& model_;
    const ops::Backend& backend_;
    OpContext context_;
    const engine::CheckedRequest& checked_;
    std::int32_t choice_;
    accept::RequestProgress progress_;
    model::Sequence sequence_;
    Matrix logits_;  // of the token fed last
    std::vector<accept::TokenLogprob> top_;
    Output output_;
};

}  // namespace

PlainRunner::PlainRunner(const Subject& subject)
    : subject_(subject), backend_(ops::make_reference_backend()), host_(1), arena_(Buffer()) {}

Expected<Output> PlainRunner::run(const engine::CheckedRequest& checked, std::int32_t choice,
                                  bool absorbed) {
    const auto length = static_cast<std::int64_t>(checked.request.prompt.size());
    ESPALIER_ASSIGN_OR_RETURN(model::Sequence sequence,
                              model::Sequence::create(subject_.model, absorbed ? 0 : length,
                                                      length + checked.rules.options().max_tokens));
    return PlainRun(subject_, *backend_, {host_, arena_}, checked, choice, std::move(sequence))();
}

}  // namespace espalier::lossless
