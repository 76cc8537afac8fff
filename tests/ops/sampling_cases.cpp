// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/reference_sampling.hpp"

namespace espalier::ops {
namespace {

template <typename T>
T one_of(std::mt19937& random, std::initializer_list<T> list) {
    return *(list.begin() + random() % list.size());
}

// Different ids, in no order.
std::vector<std::int32_t> random_ids(std::mt19937& random, std::int64_t vocabulary,
                                     std::size_t most) {
    std::vector<std::int32_t> ids;
    const std::size_t wanted = random() % (most + 1);
    std::vector<bool> taken(static_cast<std::size_t>(vocabulary));
    for (std::size_t i = 0; i < wanted; ++i) {
        const std::size_t id = random() % taken.size();
        if (!taken[id]) ids.push_back(static_cast<std::int32_t>(id));
        taken[id] = true;
    }
    return ids;
}

std::vector<TokenCount> random_counts(std::mt19937& random, std::int64_t vocabulary,
                                      std::size_t most) {
    std::vector<TokenCount> counts;
    for (const std::int32_t token : random_ids(random, vocabulary, most))
        counts.push_back({.token = token,
                          .in_output = one_of(random, {0, 0, 1, 2, 3, 1000000}),
                          .in_prompt = random() % 2 == 0});
    return counts;
}

// From nothing allowed over a few to nearly everything.
std::vector<std::uint32_t> random_mask(std::mt19937& random, std::int64_t vocabulary) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>((vocabulary + 31) / 32));
    const auto kind = random() % 4;
    for (std::uint32_t& word : words) {
        const auto bits = static_cast<std::uint32_t>(random());
        if (kind == 1) word = bits & static_cast<std::uint32_t>(random());
        if (kind == 2) word = random() % 50 == 0 ? 1u << (bits % 32) : 0u;
        if (kind == 3) word = bits | static_cast<std::uint32_t>(random());
    }
    return words;
}

}  // namespace

std::string NodeCase::describe() const {
    return fmt::format(
        "T {} min_p {} top_k {} top_p {}, {} biases, repetition {} frequency {} presence {} with "
        "{} + {} counts, {} banned, {}, wanted {}",
        node.temperature, node.min_p, node.top_k, node.top_p, biases.size(),
        node.repetition_penalty, node.frequency_penalty, node.presence_penalty, committed.size(),
        changed.size(), banned.size(), node.allowed != nullptr ? "a mask" : "no mask", node.wanted);
}

SamplingNode random_filters(std::mt19937& random) {
    SamplingNode node;
    node.temperature = one_of(
        random, {0.0f, 1e-6f, 1e-5f, 1e-3f, 0.1f, 0.7f, 1.0f, 1.0f, 1.0f, 1.5f, 30.0f, 1e20f});
    node.min_p = one_of(random, {0.0f, 0.0f, 0.0f, 0.01f, 0.1f, 1.0f, 2.0f, 1e-30f});
    node.top_p = one_of(random, {1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-9f, 0.0f, 0.999999f, 0.25f});
    node.top_k = one_of(random, {0, 0, 0, 1, 2, 5, 40, 1000000});
    node.seed = (std::uint64_t{random()} << 32) | random();
    node.position = static_cast<std::int32_t>(random() % 100000);
    node.choice = static_cast<std::int32_t>(random() % 4);
    return node;
}

std::vector<float> random_logits(std::mt19937& random, std::int64_t vocabulary) {
    std::vector<float> logits;
    std::normal_distribution<float> normal;
    const auto kind = random() % 8;
    for (std::int64_t i = 0; i < vocabulary; ++i) {
        switch (kind) {
            case 0:
                logits.push_back(normal(random) * 3.0f);
                break;
            case 1:
                logits.push_back(static_cast<float>(random() % 3));
                break;
            case 2:
                logits.push_back(random() % 2 == 0 ? -kInfinity : normal(random));
                break;
            case 3:
                logits.push_back(normal(random) * 1e38f);
                break;
            case 4:
                logits.push_back(std::clamp(normal(random) * 1e15f, -3e38f, 3e38f));
                break;
            case 5:
                logits.push_back(1.5f);
                break;
            case 6:
                logits.push_back(random() % 2 == 0
                                     ? -0.0f
                                     : (random() % 2 == 0 ? 0.0f : normal(random) * 1e-40f));
                break;
            default:
                logits.push_back(std::round(normal(random) * 8.0f) / 8.0f + 20.0f);
                break;
        }
        if (!(std::abs(logits.back()) < kInfinity)) logits.back() = -kInfinity;
    }
    const auto poison = random() % 40;
    if (poison == 0) logits[random() % logits.size()] = std::nanf("");
    if (poison == 1) logits[random() % logits.size()] = kInfinity;
    if (poison == 2) std::fill(logits.begin(), logits.end(), -kInfinity);
    return logits;
}

void fill_random(std::mt19937& random, std::int64_t vocabulary, NodeCase& made) {
    made.node = random_filters(random);
    const auto some = static_cast<std::size_t>(vocabulary);
    if (random() % 3 == 0) {
        for (const std::int32_t id :
             random_ids(random, vocabulary, std::min<std::size_t>(some, 1024)))
            made.biases.push_back(
                {id, one_of(random, {-100.0f, -1.0f, 0.0f, 0.3f, 100.0f, 3e38f})});
        made.node.biases = made.biases;
    }
    if (random() % 2 == 0) {
        made.node.repetition_penalty = one_of(random, {1.0f, 1.1f, 0.5f, 100.0f, 1e-30f, 1e-42f});
        made.node.frequency_penalty = one_of(random, {0.0f, 0.0f, 0.7f, -2.0f, 2.0f, 3e38f});
        made.node.presence_penalty = one_of(random, {0.0f, 0.0f, 0.4f, -2.0f, 2.0f, -3e38f});
    }
    made.committed = random_counts(random, vocabulary, some);
    made.changed = random_counts(random, vocabulary, kMaxDrafts);
    made.node.committed = made.committed;
    made.node.changed = made.changed;
    if (random() % 3 == 0) made.banned = random_ids(random, vocabulary, some + 4);
    if (random() % 30 == 0)  // all of them
        for (std::int32_t id = 0; id < vocabulary; ++id) made.banned.push_back(id);
    made.node.banned = made.banned;
    if (random() % 3 == 0) {
        made.allowed = random_mask(random, vocabulary);
        made.node.allowed = made.allowed.data();
    }
    made.node.logprob = random() % 4 != 0;
    if (random() % 8 == 0) made.node.wanted = static_cast<std::int32_t>(random() % some);
}

Outcome reference_outcome(const std::vector<float>& logits, const SamplingNode& node,
                          std::size_t top_count) {
    Outcome outcome;
    outcome.top.assign(top_count, {77, 77.0f});
    outcome.draw =
        reference_draw(logits.data(), static_cast<std::int64_t>(logits.size()), node, outcome.top);
    return outcome;
}

void expect_same(const Outcome& got, const Outcome& wanted, const std::string& where) {
    EXPECT_EQ(got.draw.token, wanted.draw.token) << where;
    EXPECT_EQ(got.draw.flag, wanted.draw.flag) << where;
    EXPECT_TRUE(same_bits(&got.draw.logprob, &wanted.draw.logprob, 1)) << where;
    ASSERT_EQ(got.top.size(), wanted.top.size());
    for (std::size_t i = 0; i < got.top.size(); ++i) {
        EXPECT_EQ(got.top[i].token, wanted.top[i].token) << where << ", alternative " << i;
        EXPECT_TRUE(same_bits(&got.top[i].logprob, &wanted.top[i].logprob, 1))
            << where << ", alternative " << i;
    }
}

namespace {

SamplingCapacity capacity_for(std::int64_t vocabulary, const std::vector<SamplingNode>& nodes,
                              std::int64_t pads) {
    SamplingCapacity capacity{.nodes = std::ssize(nodes) + pads,
                              .requests = std::ssize(nodes),
                              .vocabulary = vocabulary,
                              .max_context = vocabulary};
    for (const SamplingNode& node : nodes) {
        capacity.biases = std::max(capacity.biases, std::ssize(node.biases));
        capacity.banned = std::max(capacity.banned, std::ssize(node.banned));
        capacity.masks += node.allowed != nullptr ? 1 : 0;
    }
    return capacity;
}

}  // namespace

CpuDevice& host() {
    static CpuDevice device(1);
    return device;
}

NodeBatch::NodeBatch(std::int64_t vocabulary, const std::vector<SamplingNode>& nodes,
                     const std::vector<std::size_t>& top_counts, std::int64_t pads, Device& device)
    : device_(device),
      builder_(SamplingBatchBuilder::create(capacity_for(vocabulary, nodes, pads)).value()),
      memory_(SamplingMemory::create(device, builder_.capacity()).value()) {
    builder_.begin(std::ssize(nodes) + pads);
    for (std::size_t g = 0; g < nodes.size(); ++g) {
        const SamplingNode& node = nodes[g];
        NodeRequest request{.parameters = node,
                            .position = node.position,
                            .choice = node.choice,
                            .wanted = node.wanted,
                            .logprob = node.logprob,
                            .alternatives = static_cast<std::int32_t>(top_counts[g]),
                            .biases = builder_.add_biases(node.biases),
                            .banned = builder_.add_banned(node.banned),
                            .changed = node.changed};
        if (!node.committed.empty())
            request.committed = builder_.add_counts(static_cast<std::int64_t>(g),
                                                    {.entries = node.committed, .recent = {}});
        if (node.allowed != nullptr) {
            const std::span<std::uint32_t> mask = builder_.add_mask(request.allowed);
            std::copy_n(node.allowed, mask.size(), mask.begin());
        }
        reported_.push_back(builder_.add(request));
    }
    builder_.finish();
    view_ = memory_.upload(device.stream(), builder_).value();
    builder_.begin(0);  // what was uploaded does not depend on the builder
}

std::vector<Outcome> NodeBatch::outcomes() const {
    std::vector<Draw> draws(static_cast<std::size_t>(view_.nodes));
    const ListRange last = reported_.empty() ? ListRange{} : reported_.back();
    std::vector<TokenLogprob> top(last.first + last.count);
    EXPECT_TRUE(memory_.download(device_.stream(), draws, top));
    std::vector<Outcome> outcomes(draws.size());
    for (std::size_t g = 0; g < draws.size(); ++g) {
        outcomes[g].draw = draws[g];
        if (g >= reported_.size()) continue;
        const auto of_node = std::span(top).subspan(reported_[g].first, reported_[g].count);
        outcomes[g].top.assign(of_node.begin(), of_node.end());
    }
    return outcomes;
}

Sampler::Sampler(CpuVariant variant, int workers)
    : backend_(make_cpu_backend(variant)),
      device_(workers),
      arena_(make_arena(backend_->scratch_bytes(0, 64, 200000, workers))) {}

std::vector<Outcome> Sampler::draw(std::vector<float> logits,
                                   const std::vector<SamplingNode>& nodes,
                                   const std::vector<std::size_t>& top_counts) {
    const auto rows = static_cast<std::int64_t>(nodes.size());
    const std::int64_t vocabulary = static_cast<std::int64_t>(logits.size()) / rows;
    const std::vector<float> before = logits;
    const NodeBatch batch(vocabulary, nodes, top_counts);
    OpContext context{device_, arena_};
    backend_->sample_nodes(context, Matrix::of(logits.data(), rows, vocabulary), batch.view());
    EXPECT_TRUE(same_bits(logits.data(), before.data(), static_cast<std::int64_t>(logits.size())));
    return batch.outcomes();
}

std::vector<DraftChild> Sampler::children(std::vector<float> logits, std::int64_t vocabulary,
                                          const std::vector<SamplingNode>& nodes,
                                          const DraftVocabulary& draft, const DraftRule& rule) {
    const auto rows = static_cast<std::int64_t>(nodes.size());
    const std::vector<float> before = logits;
    const NodeBatch batch(vocabulary, nodes, std::vector<std::size_t>(nodes.size(), 0));
    std::vector<DraftChild> children(nodes.size() * static_cast<std::size_t>(rule.width),
                                     DraftChild{.score = 77.0, .token = 77, .probability = 77.0f});
    OpContext context{device_, arena_};
    backend_->draft_children(
        context, Matrix::of(logits.data(), rows, static_cast<std::int64_t>(logits.size()) / rows),
        batch.view(), draft, rule, children.data());
    EXPECT_TRUE(same_bits(logits.data(), before.data(), static_cast<std::int64_t>(logits.size())));
    return children;
}

}  // namespace espalier::ops
