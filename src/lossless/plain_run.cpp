// SPDX-License-Identifier: Apache-2.0
#include "lossless/plain_run.hpp"

#include <array>
#include <utility>

#include "grammar/matcher.hpp"
#include "model/sequence.hpp"
#include "ops/sampling_builder.hpp"
#include "ops/sampling_memory.hpp"

namespace espalier::lossless {
namespace {

// Draws one token at a time from the logits of a model's last pass, which it brings to the host.
class PlainSampler {
  public:
    // context: of the host.
    static Expected<PlainSampler> create(const ops::Backend& backend, OpContext context,
                                         Device& model, std::int64_t vocabulary,
                                         std::int64_t max_context) {
        const ops::SamplingCapacity capacity{
            .nodes = 1,
            .requests = 1,
            .vocabulary = vocabulary,
            .max_context = max_context,
            .biases = accept::kMaxLogitBiases,
            .banned = 2 * accept::kMaxStopTokens + accept::kMaxStopStrings,
            .masks = 1};
        ESPALIER_ASSIGN_OR_RETURN(auto builder, ops::SamplingBatchBuilder::create(capacity));
        ESPALIER_ASSIGN_OR_RETURN(auto memory,
                                  ops::SamplingMemory::create(context.device, capacity));
        return PlainSampler(backend, context, model, std::move(builder), std::move(memory));
    }

    // begin(), then what the node takes of the builder, then draw().
    ops::SamplingBatchBuilder& begin() {
        builder_.begin(1);
        return builder_;
    }
    Expected<ops::Draw> draw(const Matrix& logits, const ops::NodeRequest& node,
                             std::vector<accept::TokenLogprob>& top) {
        builder_.add(node);
        builder_.finish();
        ESPALIER_ASSIGN_OR_RETURN(const ops::SamplingBatch batch,
                                  memory_.upload(context_.stream, builder_));
        logits_.resize(static_cast<std::size_t>(logits.cols));
        ESPALIER_RETURN_IF_ERROR(model_.download(model_.stream(), logits_.data(), logits.data,
                                                 logits_.size() * sizeof(float)));
        backend_.sample_nodes(context_, Matrix::of(logits_.data(), 1, logits.cols), batch);
        ops::Draw draw;
        top.assign(static_cast<std::size_t>(node.alternatives), {});
        ESPALIER_RETURN_IF_ERROR(memory_.download(context_.stream, {&draw, 1}, top));
        return draw;
    }

  private:
    PlainSampler(const ops::Backend& backend, OpContext context, Device& model,
                 ops::SamplingBatchBuilder builder, ops::SamplingMemory memory)
        : backend_(backend),
          context_(context),
          model_(model),
          builder_(std::move(builder)),
          memory_(std::move(memory)) {}

    const ops::Backend& backend_;
    OpContext context_;
    Device& model_;
    std::vector<float> logits_;  // of the last draw
    ops::SamplingBatchBuilder builder_;
    ops::SamplingMemory memory_;
};

// State of a text after all of its tokens.
struct PlainPlace {
    bool reasoning = false;
    std::int64_t reasoning_tokens = 0;
    std::size_t answer = 0;  // where the answer begins
};

PlainPlace place_of(const std::optional<accept::ReasoningRule>& rule,
                    std::span<const std::int32_t> output) {
    if (!rule || !rule->open) return {};
    for (std::size_t i = 0; i < output.size(); ++i)
        for (const std::int32_t end : rule->end_token_ids)
            if (output[i] == end) return {false, static_cast<std::int64_t>(i), i + 1};
    return {true, static_cast<std::int64_t>(output.size()), output.size()};
}

class PlainRun {
  public:
    PlainRun(const Subject& subject, PlainSampler sampler, const engine::CheckedRequest& checked,
             std::int32_t choice, model::Sequence sequence)
        : model_(subject.model),
          sampler_(std::move(sampler)),
          checked_(checked),
          choice_(choice),
          progress_(checked.rules, subject.tokenizer, checked.request.prompt),
          sequence_(std::move(sequence)) {}

    Expected<Output> operator()() {
        ESPALIER_RETURN_IF_ERROR(feed_prompt());
        if (!progress_.finish() && progress_.tokens_left() == 0)
            progress_.end(accept::FinishReason::length, output_);
        while (!progress_.finish()) {
            ESPALIER_ASSIGN_OR_RETURN(const ops::Draw drawn, draw());
            if (drawn.flag == ops::DrawFlag::nothing_left)
                progress_.end(accept::FinishReason::nothing_left, output_);
            else if (drawn.flag == ops::DrawFlag::bad_logits)
                progress_.end(accept::FinishReason::bad_numbers, output_);
            else
                ESPALIER_RETURN_IF_ERROR(commit(drawn));
        }
        output_.finish = *progress_.finish();
        output_.reasoning_tokens =
            place_of(checked_.request.reasoning, committed_).reasoning_tokens;
        return output_;
    }

  private:
    Expected<void> commit(const ops::Draw& drawn) {
        committed_.push_back(drawn.token);
        if (progress_.commit(drawn, top_, output_)) return {};
        return feed(std::array{drawn.token});
    }

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
            sampler_.begin();
            ESPALIER_ASSIGN_OR_RETURN(
                const ops::Draw drawn,
                sampler_.draw(logits_, {.wanted = prompt[i + 1], .alternatives = *asked}, top_));
            output_.prompt_logprobs.push_back(drawn.logprob);
            output_.prompt_tops.insert(output_.prompt_tops.end(), top_.begin(), top_.end());
        }
        return {};
    }

    // Part of the vocabulary that its reasoning and its grammar leave.
    Expected<void> constrain(ops::SamplingBatchBuilder& builder, ops::NodeRequest& node) const {
        const engine::Request& request = checked_.request;
        const PlainPlace place = place_of(request.reasoning, committed_);
        if (place.reasoning) {
            const std::optional<std::int64_t> budget = request.reasoning->budget;
            if (budget && place.reasoning_tokens >= *budget) {
                const auto token = static_cast<std::size_t>(request.reasoning->end_token_ids[0]);
                const std::span<std::uint32_t> words = builder.add_mask(node.allowed);
                for (std::size_t i = 0; i < words.size(); ++i)
                    words[i] = i == token / 32 ? 1u << token % 32 : 0u;
            } else if (request.grammar) {
                node.banned = builder.add_banned(checked_.rules.options().eos_token_ids);
            }
            return {};
        }
        if (!request.grammar) return {};
        grammar::Matcher matcher(request.grammar, grammar::Masks::filled_anew);
        for (std::size_t i = place.answer; i < committed_.size(); ++i)
            if (!matcher.accept(committed_[i]))
                return fail(ErrorKind::invalid, "the grammar refuses token {} of a plain run", i);
        matcher.fill_mask(builder.add_mask(node.allowed));
        return {};
    }

    Expected<ops::Draw> draw() {
        ops::SamplingBatchBuilder& builder = sampler_.begin();
        ops::NodeRequest node{.parameters = checked_.sampling.draw(),
                              .position = static_cast<std::int32_t>(sequence_.length()),
                              .choice = choice_,
                              .logprob = checked_.request.logprobs,
                              .alternatives = checked_.rules.options().top_logprobs};
        if (const auto& forced = checked_.request.forced_output; !forced.empty())
            node.wanted = forced[static_cast<std::size_t>(progress_.usage().completion_tokens)];
        node.biases = builder.add_biases(checked_.sampling.logit_bias());
        node.banned = builder.add_banned(progress_.banned_at(0));
        // All counts each time: nothing is followed step by step.
        if (checked_.sampling.counts_tokens())
            node.committed =
                builder.add_counts(draws_++, {.entries = progress_.committed_counts().entries});
        ESPALIER_RETURN_IF_ERROR(constrain(builder, node));
        return sampler_.draw(logits_, node, top_);
    }

    model::DeepseekModel& model_;
    PlainSampler sampler_;
    const engine::CheckedRequest& checked_;
    std::int32_t choice_;
    std::int64_t draws_ = 0;
    accept::RequestProgress progress_;
    model::Sequence sequence_;
    Matrix logits_;  // of the token fed last
    std::vector<accept::TokenLogprob> top_;
    std::vector<std::int32_t> committed_;
    Output output_;
};

}  // namespace

PlainRunner::PlainRunner(const Subject& subject)
    : subject_(subject), backend_(ops::make_reference_backend()), arena_(Buffer()) {}

Expected<Output> PlainRunner::run(const engine::CheckedRequest& checked, std::int32_t choice,
                                  bool absorbed) {
    const auto length = static_cast<std::int64_t>(checked.request.prompt.size());
    ESPALIER_ASSIGN_OR_RETURN(model::Sequence sequence,
                              model::Sequence::create(subject_.model, absorbed ? 0 : length,
                                                      length + checked.rules.options().max_tokens));
    ESPALIER_ASSIGN_OR_RETURN(
        PlainSampler sampler,
        PlainSampler::create(*backend_, {host_, arena_}, subject_.model.device(),
                             subject_.vocabulary(), length + checked.rules.options().max_tokens));
    return PlainRun(subject_, std::move(sampler), checked, choice, std::move(sequence))();
}

}  // namespace espalier::lossless
