// SPDX-License-Identifier: Apache-2.0
// Draws and draft children on a GPU are the reference's, to the last bit of every logprob and
// score: hostile logits, every filter, every adjustment, many nodes at once, pads.
#include "ops/cuda/gpu.hpp"
#include "ops/reference_sampling.hpp"
#include "ops/sampling_cases.hpp"

namespace espalier::ops {
namespace {

struct Nodes {
    std::int64_t vocabulary = 0, size = 0;  // size: logits of a row
    std::vector<std::unique_ptr<NodeCase>> made;
    std::vector<float> logits;  // [nodes, size]
    std::vector<SamplingNode> nodes() const {
        std::vector<SamplingNode> all;
        for (const auto& one : made) all.push_back(one->node);
        return all;
    }
    std::vector<float> row(std::size_t g) const {
        const auto width = static_cast<std::size_t>(size);
        return {logits.begin() + static_cast<std::ptrdiff_t>(g * width),
                logits.begin() + static_cast<std::ptrdiff_t>((g + 1) * width)};
    }
};

Nodes random_nodes(std::mt19937& random, std::int64_t vocabulary, std::int64_t size, int count) {
    Nodes nodes{.vocabulary = vocabulary, .size = size, .made = {}, .logits = {}};
    for (int g = 0; g < count; ++g) {
        nodes.made.push_back(std::make_unique<NodeCase>());
        fill_random(random, vocabulary, *nodes.made.back());
        const std::vector<float> row = random_logits(random, size);
        nodes.logits.insert(nodes.logits.end(), row.begin(), row.end());
    }
    return nodes;
}

class GpuSampling : public testing::Test {
  protected:
    void compare_draws(int rounds, int count, std::int64_t smallest, std::int64_t largest) {
        std::mt19937 random(static_cast<unsigned>(largest));
        for (int round = 0; round < rounds && !HasFailure(); ++round) {
            const std::int64_t vocabulary =
                smallest + static_cast<std::int64_t>(random()) % (largest - smallest + 1);
            const Nodes nodes = random_nodes(random, vocabulary, vocabulary, count);
            std::vector<std::size_t> tops;
            for (int g = 0; g < count; ++g) tops.push_back(g % 3 == 0 ? random() % 21 : 0);
            constexpr std::int64_t kPads = 3;
            std::vector<float> logits = nodes.logits;
            logits.resize(logits.size() + static_cast<std::size_t>(kPads * vocabulary),
                          std::nanf(""));
            OnGpu<float> rows(gpu, logits);
            const NodeBatch batch(vocabulary, nodes.nodes(), tops, kPads, *gpu.device);
            gpu.backend->sample_nodes(gpu.context, rows.matrix(count + kPads, vocabulary),
                                      batch.view());
            const std::vector<Outcome> got = batch.outcomes();
            for (std::size_t g = 0; g < nodes.made.size(); ++g)
                expect_same(got[g], reference_outcome(nodes.row(g), nodes.made[g]->node, tops[g]),
                            fmt::format("round {}, node {} of {} ids, {}", round, g, vocabulary,
                                        nodes.made[g]->describe()));
            for (std::size_t g = nodes.made.size(); g < got.size(); ++g)
                expect_same(got[g], {}, "a pad");
            EXPECT_TRUE(same_bits(rows.values().data(), logits.data(), std::ssize(logits)));
        }
    }

    void compare_children(int rounds, int count, std::int64_t smallest, std::int64_t largest) {
        std::mt19937 random(static_cast<unsigned>(largest) + 1);
        for (int round = 0; round < rounds && !HasFailure(); ++round) {
            const std::int64_t vocabulary =
                smallest + static_cast<std::int64_t>(random()) % (largest - smallest + 1);
            std::vector<std::int32_t> target_of(static_cast<std::size_t>(vocabulary)), draft_of;
            for (std::size_t i = 0; i < target_of.size(); ++i)
                target_of[i] = static_cast<std::int32_t>(i);
            std::shuffle(target_of.begin(), target_of.end(), random);
            const bool mapped = round % 3 != 0;
            if (mapped) target_of.resize(1 + random() % target_of.size());
            draft_of.assign(static_cast<std::size_t>(vocabulary), -1);
            for (std::size_t i = 0; i < target_of.size(); ++i)
                draft_of[static_cast<std::size_t>(target_of[i])] = static_cast<std::int32_t>(i);
            const Nodes nodes = random_nodes(random, vocabulary, std::ssize(target_of), count);
            check_children(nodes, mapped ? target_of : std::vector<std::int32_t>{}, draft_of,
                           {.width = static_cast<std::int32_t>(1 + random() % kMaxDrafts),
                            .coupled = random() % 3 != 0},
                           round);
        }
    }

    void check_children(const Nodes& nodes, const std::vector<std::int32_t>& target_of,
                        const std::vector<std::int32_t>& draft_of, const DraftRule& rule,
                        int round) {
        const bool mapped = !target_of.empty();
        const auto count = std::ssize(nodes.made);
        const auto width = static_cast<std::size_t>(rule.width);
        OnGpu<float> rows(gpu, nodes.logits);
        OnGpu<std::int32_t> targets(gpu, target_of), drafts(gpu, draft_of);
        OnGpu<DraftChild> children(gpu, std::vector<DraftChild>(nodes.made.size() * width));
        const NodeBatch batch(nodes.vocabulary, nodes.nodes(),
                              std::vector<std::size_t>(nodes.made.size(), 0), 0, *gpu.device);
        gpu.backend->draft_children(
            gpu.context, rows.matrix(count, nodes.size), batch.view(),
            mapped ? DraftVocabulary{targets.data(), drafts.data()} : DraftVocabulary{}, rule,
            children.data());
        const std::vector<DraftChild> got = children.values();
        for (std::size_t g = 0; g < nodes.made.size(); ++g) {
            std::vector<DraftChild> wanted(width);
            reference_children(nodes.row(g), nodes.vocabulary, mapped ? target_of.data() : nullptr,
                               nodes.made[g]->node, rule.coupled, wanted);
            for (std::size_t i = 0; i < width; ++i) {
                const DraftChild& child = got[g * width + i];
                ASSERT_EQ(child.token, wanted[i].token)
                    << "round " << round << ", node " << g << ", child " << i << ", "
                    << nodes.made[g]->describe();
                ASSERT_TRUE(same_bits(&child.score, &wanted[i].score, 1));
                ASSERT_TRUE(same_bits(&child.probability, &wanted[i].probability, 1));
            }
        }
    }

    Gpu gpu;
};

TEST_F(GpuSampling, DrawsAreTheReferencesOnSmallVocabularies) { compare_draws(60, 40, 1, 120); }
TEST_F(GpuSampling, DrawsAreTheReferencesOnLargeVocabularies) { compare_draws(4, 30, 500, 50000); }
TEST_F(GpuSampling, DrawsAreTheReferencesOnDeepSeeksVocabulary) {
    compare_draws(1, 24, 129280, 129280);
}
// More than are drawn at a time.
TEST_F(GpuSampling, DrawsAreTheReferencesForManyNodes) { compare_draws(1, 500, 100, 300); }
// So few that each has a cluster of blocks, of every size.
TEST_F(GpuSampling, DrawsAreTheReferencesForFewNodes) {
    for (const int count : {1, 9, 20, 40}) compare_draws(48 / count, count, 3000, 60000);
    compare_draws(4, 2, 163840, 163840);
}
TEST_F(GpuSampling, ChildrenAreTheReferencesOnSmallVocabularies) {
    compare_children(60, 40, 1, 120);
}
TEST_F(GpuSampling, ChildrenAreTheReferencesOnLargeVocabularies) {
    compare_children(4, 20, 500, 50000);
}
TEST_F(GpuSampling, ChildrenAreTheReferencesForFewNodes) {
    for (const int count : {1, 9, 20, 40}) compare_children(48 / count, count, 3000, 60000);
    compare_children(4, 2, 163840, 163840);
}
TEST_F(GpuSampling, ChildrenAreTheReferencesForManyNodes) { compare_children(2, 500, 100, 300); }
// Candidates are listed from the best of many groups of tokens: here a few groups have all that are
// likely, thousands of them, and the list is too short.
TEST_F(GpuSampling, ChildrenAreTheReferencesWhereFewGroupsHaveThemAll) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int round = 0; round < 24 && !HasFailure(); ++round) {
        Nodes nodes{.vocabulary = 90000, .size = 90000, .made = {}, .logits = {}};
        nodes.made.push_back(std::make_unique<NodeCase>());
        SamplingNode& node = nodes.made.back()->node;
        node.seed = random();
        node.temperature = round % 2 == 0 ? 1.0f : 0.2f;
        for (std::int64_t i = 0; i < nodes.size; ++i)
            nodes.logits.push_back(normal(random) + (i % 1024 / 32 == round ? 60.0f : 0.0f));
        const std::int32_t widths[] = {1, 8, 40, kMaxDrafts};
        check_children(nodes, {}, {0}, {.width = widths[round % 4], .coupled = round % 3 != 0},
                       round);
    }
}

}  // namespace
}  // namespace espalier::ops
