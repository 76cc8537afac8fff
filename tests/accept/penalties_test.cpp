// SPDX-License-Identifier: Apache-2.0
// Penalties at the nodes of a tree: what sample_nodes draws there is what a plain implementation
// draws that knows no tree, only a text, one token at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "accept/sampling_parameters.hpp"
#include "accept/token_counts.hpp"
#include "accept/walk.hpp"
#include "base/cpu_device.hpp"
#include "base/random.hpp"
#include "ops/ops.hpp"
#include "ops/reference_sampling.hpp"
#include "ops/sampling_builder.hpp"
#include "ops/sampling_memory.hpp"

namespace espalier::accept {
namespace {

struct Text {
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t> output;
};

// Looks the whole text over for every token.
ops::Draw draw_next(const std::vector<float>& logits, const Text& text,
                    const SamplingOptions& options) {
    std::vector<float> adjusted = logits;
    for (std::size_t token = 0; token < logits.size(); ++token) {
        const auto id = static_cast<std::int32_t>(token);
        const auto in_prompt = std::count(text.prompt.begin(), text.prompt.end(), id);
        const auto in_output = std::count(text.output.begin(), text.output.end(), id);
        for (const SamplingOptions::Bias& bias : options.logit_bias)
            if (bias.token == id) adjusted[token] += bias.bias;
        if (in_prompt + in_output > 0) {
            if (adjusted[token] > 0.0f) {
                adjusted[token] /= options.repetition_penalty;
            } else {
                adjusted[token] *= options.repetition_penalty;
            }
        }
        if (in_output > 0) {
            adjusted[token] -= options.frequency_penalty * static_cast<float>(in_output);
            adjusted[token] -= options.presence_penalty;
        }
    }
    const auto vocabulary = static_cast<std::int64_t>(logits.size());
    ops::SamplingNode plain;
    plain.temperature = options.temperature;
    plain.seed = options.seed;
    plain.position = static_cast<std::int32_t>(text.prompt.size() + text.output.size());
    const ops::Draw drawn = ops::reference_draw(adjusted.data(), vocabulary, plain);
    plain.wanted = drawn.token;  // the logprob is that of the raw logits
    return ops::reference_draw(logits.data(), vocabulary, plain);
}

class Workload {
  public:
    explicit Workload(std::uint64_t seed) : random_(seed), vocabulary_(random_.between(2, 40)) {
        text_.prompt = tokens(random_.between(1, 30));
        text_.output = tokens(random_.between(0, 30));
        options_.temperature = random_.chance(0.3) ? 0.0f : 0.8f;
        options_.repetition_penalty = random_.chance(0.3) ? 1.0f : 1.3f;
        options_.presence_penalty = random_.chance(0.3) ? 0.0f : 0.6f;
        options_.frequency_penalty = random_.chance(0.3) ? 0.0f : -0.35f;
        options_.seed = random_.bits();
        if (random_.chance(0.5))
            options_.logit_bias = {{random_.between(0, vocabulary_ - 1), 1.5f}};
        // Any tree: node i hangs below any earlier one.
        parents_ = {-1};
        tree_tokens_ = tokens(random_.between(1, kMaxNodes));
        for (int i = 1; i < static_cast<int>(tree_tokens_.size()); ++i)
            parents_.push_back(random_.between(random_.chance(0.5) ? i - 1 : 0, i - 1));
    }

    void check(const ops::Backend& backend, int workers) {
        const std::size_t nodes = parents_.size();
        const auto parameters = SamplingParameters::make(options_, vocabulary_);
        ASSERT_TRUE(parameters);
        TokenCounts counts(text_.prompt);
        for (const std::int32_t token : text_.output) counts.add(token);

        const ops::SamplingCapacity capacity{.nodes = kMaxNodes,
                                             .requests = 1,
                                             .vocabulary = vocabulary_,
                                             .max_context = 60,
                                             .biases = 1};
        auto builder = ops::SamplingBatchBuilder::create(capacity).value();
        CpuDevice device(workers);
        auto memory = ops::SamplingMemory::create(device, capacity).value();
        builder.begin(static_cast<std::int64_t>(nodes));
        ops::NodeRequest common{.parameters = parameters->draw()};
        common.biases = builder.add_biases(parameters->logit_bias());
        common.committed = builder.add_counts(0, counts.committed());
        std::vector<float> logits;
        std::vector<ops::Draw> wanted;
        for (std::size_t node = 0; node < nodes; ++node) {
            const NodeList path =
                path_tokens({parents_, tree_tokens_}, static_cast<std::int32_t>(node));
            Text text = text_;
            for (const std::int32_t token : path.values()) text.output.push_back(token);
            std::vector<float> row;
            for (int i = 0; i < vocabulary_; ++i) row.push_back(2.0f * random_.normal());
            wanted.push_back(draw_next(row, text, options_));
            logits.insert(logits.end(), row.begin(), row.end());
            const NodeCounts at = counts.at(path.values());
            ops::NodeRequest request = common;
            request.position = static_cast<std::int32_t>(text.prompt.size() + text.output.size());
            request.changed = at.changed();
            builder.add(request);
        }
        builder.finish();

        Arena arena(
            device.allocate(backend.scratch_bytes(0, kMaxNodes, vocabulary_, workers)).value());
        OpContext context{device, arena};
        std::vector<ops::Draw> draws(nodes);
        backend.sample_nodes(
            context, Matrix::of(logits.data(), static_cast<std::int64_t>(nodes), vocabulary_),
            memory.upload(context.stream, builder).value());
        ASSERT_TRUE(memory.download(context.stream, draws, {}));
        for (std::size_t node = 0; node < nodes; ++node) {
            ASSERT_EQ(draws[node].token, wanted[node].token) << "node " << node;
            ASSERT_EQ(draws[node].logprob, wanted[node].logprob) << "node " << node;
        }
    }

  private:
    std::vector<std::int32_t> tokens(int count) {
        std::vector<std::int32_t> made;
        for (int i = 0; i < count; ++i) made.push_back(random_.between(0, vocabulary_ - 1));
        return made;
    }

    Random random_;
    int vocabulary_;
    Text text_;
    SamplingOptions options_;
    std::vector<std::int32_t> parents_, tree_tokens_;
};

TEST(Penalties, AtANodeCountItsAncestorsAsPlainDecodeWould) {
    const auto plain = ops::make_reference_backend();
    const auto fast = ops::make_cpu_backend(best_cpu_variant());
    for (std::uint64_t seed = 0; seed < 400 && !HasFatalFailure(); ++seed) {
        SCOPED_TRACE(seed);
        Workload(seed).check(seed % 4 == 0 ? *plain : *fast, seed % 8 == 1 ? 2 : 1);
    }
}

}  // namespace
}  // namespace espalier::accept
