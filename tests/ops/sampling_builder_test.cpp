// SPDX-License-Identifier: Apache-2.0
// SamplingBatchBuilder: what a device reads is what was asked for, step after step; committed
// counts follow their owners by what changed; limits are kept.
#include "ops/sampling_builder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ops/sampling_cases.hpp"
#include "support/allocation_counter.hpp"

namespace espalier::ops {
namespace {

// Counts as a request keeps them, plainly.
struct Owner {
    std::vector<TokenCount> entries;
    std::int64_t changes = 0;
    std::vector<std::int32_t> recent = std::vector<std::int32_t>(kMaxNodes);

    void add(std::int32_t token) {
        auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const TokenCount& entry) { return entry.token == token; });
        if (found == entries.end()) found = entries.insert(entries.end(), {.token = token});
        ++found->in_output;
        recent[static_cast<std::size_t>(changes++ % kMaxNodes)] =
            static_cast<std::int32_t>(found - entries.begin());
    }
    CommittedCounts view() const { return {entries, changes, recent}; }
};

SamplingCapacity small_capacity() {
    return {.nodes = 8,
            .requests = 4,
            .vocabulary = 300,
            .max_context = 200,
            .biases = 5,
            .banned = 6,
            .masks = 2};
}

// More requests than places, some away for many steps: after each step, what the device would read
// for a node equals its owner's entries.
TEST(SamplingBuilder, CommittedCountsFollowTheirOwners) {
    std::mt19937 random(5);
    SamplingBatchBuilder builder = SamplingBatchBuilder::create(small_capacity()).value();
    CpuDevice device(1);
    SamplingMemory memory = SamplingMemory::create(device, small_capacity()).value();
    std::map<std::int64_t, Owner> owners;
    std::int64_t next_request = 0;
    int loads = 0, updates = 0;
    for (int step = 0; step < 3000; ++step) {
        while (owners.size() < 7) {
            Owner& owner = owners[next_request++];
            for (std::size_t i = random() % 60; i-- > 0;)
                owner.entries.push_back(
                    {.token = static_cast<std::int32_t>(3 * i), .in_prompt = true});
        }
        builder.begin(4);
        std::vector<std::pair<const Owner*, std::size_t>> nodes;
        for (auto& [request, owner] : owners) {
            if (nodes.size() == 4 || random() % 2 == 0) continue;
            const int committed =
                static_cast<int>(random() % 10 == 0 ? random() % 90 : random() % 4);
            for (int i = 0; i < committed && owner.entries.size() < 190; ++i)
                owner.add(static_cast<std::int32_t>(random() % 300));
            NodeRequest node;
            node.committed = builder.add_counts(request, owner.view());
            builder.add(node);
            nodes.emplace_back(&owner, nodes.size());
        }
        builder.finish();
        loads += static_cast<int>(builder.loads().size());
        const SamplingBatch view = memory.upload(nullptr, builder).value();
        updates += static_cast<int>(view.updates->count);
        apply_count_updates(view);
        for (const auto& [owner, g] : nodes) {
            const SamplingNode node = node_of(view, static_cast<std::int64_t>(g));
            ASSERT_TRUE(std::equal(node.committed.begin(), node.committed.end(),
                                   owner->entries.begin(), owner->entries.end()))
                << "step " << step;
        }
        if (random() % 5 == 0)
            owners.erase(std::next(owners.begin(), static_cast<long>(random() % owners.size())));
    }
    EXPECT_GT(loads, 500);
    EXPECT_GT(updates, 2000);
}

TEST(SamplingBuilder, AStepsChangesTravelInItsBatchAndNothingElse) {
    SamplingBatchBuilder builder = SamplingBatchBuilder::create(small_capacity()).value();
    Owner owner;
    owner.entries = {{.token = 9, .in_prompt = true}};
    const auto step = [&] {
        builder.begin(1);
        builder.add({.committed = builder.add_counts(3, owner.view())});
        builder.finish();
    };
    step();
    EXPECT_EQ(builder.loads().size(), 1u);
    const std::size_t plain = builder.bytes().size();
    step();
    EXPECT_EQ(builder.loads().size(), 0u);
    EXPECT_EQ(builder.bytes().size(), plain);
    owner.add(9);
    owner.add(10);
    step();
    EXPECT_EQ(builder.loads().size(), 0u);
    EXPECT_EQ(builder.bytes().size(), plain + 2 * sizeof(CountUpdate));
    for (int i = 0; i <= kMaxNodes; ++i) owner.add(9);  // more than is remembered
    step();
    EXPECT_EQ(builder.loads().size(), 1u);
}

// Nodes of a request name one list.
TEST(SamplingBuilder, ListsAreSharedAndPadsDrawNothing) {
    SamplingBatchBuilder builder = SamplingBatchBuilder::create(small_capacity()).value();
    CpuDevice device(1);
    SamplingMemory memory = SamplingMemory::create(device, small_capacity()).value();
    const std::vector<LogitBias> biases = {{7, 2.0f}, {3, -1.0f}};
    const std::vector<std::int32_t> banned = {299};
    const std::vector<TokenCount> changed = {{.token = 5, .in_output = 1, .in_prompt = false}};
    builder.begin(5);
    NodeRequest node{.position = 11, .choice = 2, .alternatives = 3};
    node.biases = builder.add_biases(biases);
    node.banned = builder.add_banned(banned);
    const std::span<std::uint32_t> mask = builder.add_mask(node.allowed);
    std::fill(mask.begin(), mask.end(), 0x11u);
    builder.add(node);
    node.changed = changed;
    node.allowed = -1;
    EXPECT_EQ(builder.add(node), (ListRange{3, 3}));
    builder.finish();
    const SamplingBatch view = memory.upload(nullptr, builder).value();
    EXPECT_EQ(view.biases[0], view.biases[1]);
    const SamplingNode first = node_of(view, 0), second = node_of(view, 1);
    EXPECT_EQ(second.position, 11);
    EXPECT_EQ(second.choice, 2);
    EXPECT_EQ(std::vector(second.biases.begin(), second.biases.end()), biases);
    EXPECT_EQ(std::vector(second.banned.begin(), second.banned.end()), banned);
    EXPECT_EQ(std::vector(second.changed.begin(), second.changed.end()), changed);
    EXPECT_TRUE(first.changed.empty());
    EXPECT_EQ(first.allowed[9], 0x11u);
    EXPECT_EQ(second.allowed, nullptr);

    std::vector<float> logits(5 * 300, std::nanf(""));  // of pads, nobody looks at them
    std::fill_n(logits.begin(), 600, 1.0f);
    for (const auto& backend : {make_cpu_backend(best_cpu_variant()), make_reference_backend()}) {
        Arena arena = make_arena(backend->scratch_bytes(0, 5, 300, 1));
        OpContext context{device, arena};
        backend->sample_nodes(context, Matrix::of(logits.data(), 5, 300), view);
        EXPECT_GE(view.draws[1].token, 0);
        for (int pad = 2; pad < 5; ++pad) {
            EXPECT_EQ(view.draws[pad].token, -1);
            EXPECT_EQ(view.draws[pad].flag, DrawFlag::fine);
        }
    }
}

TEST(SamplingBuilder, LimitsAreKept) {
    SamplingBatchBuilder builder = SamplingBatchBuilder::create(small_capacity()).value();
    const auto refuses = [&](auto&& action) {
        builder.begin(2);
        EXPECT_THROW(action(), std::exception);
    };
    refuses([&] { builder.begin(9); });
    refuses([&] { builder.add_biases(std::vector<LogitBias>(6)); });
    refuses([&] { builder.add_banned(std::vector<std::int32_t>(7)); });
    refuses([&] { builder.add_banned(std::vector<std::int32_t>{300}); });
    refuses([&] {
        std::int32_t place = 0;
        for (int i = 0; i < 3; ++i) builder.add_mask(place);
    });
    refuses([&] {
        for (int i = 0; i < 3; ++i) builder.add({});
    });
    refuses([&] { builder.add({.wanted = kPad}); });
    const std::vector<TokenCount> many(201), outside = {{.token = 300}};
    refuses([&] { builder.add_counts(1, {many, 0, {}}); });
    refuses([&] { builder.add_counts(1, {outside, 0, {}}); });
    refuses([&] {
        for (int i = 0; i < 2; ++i) builder.add_counts(1, {{}, 0, {}});
    });
    refuses([&] {
        for (int i = 0; i < 5; ++i) builder.add_counts(i, {{}, 0, {}});
    });
    SamplingCapacity beyond = small_capacity();
    beyond.requests = std::int64_t{1} << 25;
    EXPECT_FALSE(SamplingBatchBuilder::create(beyond));
    beyond = small_capacity();
    beyond.vocabulary = kMaxVocabulary + 1;
    EXPECT_FALSE(SamplingBatchBuilder::create(beyond));
}

TEST(SamplingBuilder, StepsTakeNoMemory) {
    SamplingBatchBuilder builder = SamplingBatchBuilder::create(small_capacity()).value();
    Owner owner;
    owner.entries.reserve(100);
    const std::vector<LogitBias> biases = {{7, 2.0f}};
    const std::int64_t before = allocations_so_far();
    for (int step = 0; step < 50; ++step) {
        builder.begin(8);
        owner.add(step);
        NodeRequest node;
        node.biases = builder.add_biases(biases);
        node.committed = builder.add_counts(1, owner.view());
        node.changed = std::span(owner.entries).first(1);
        builder.add_mask(node.allowed);
        for (int g = 0; g < 8; ++g) builder.add(node);
        builder.finish();
    }
    EXPECT_EQ(allocations_so_far() - before, 0);
}

}  // namespace
}  // namespace espalier::ops
