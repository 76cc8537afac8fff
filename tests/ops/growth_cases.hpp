// SPDX-License-Identifier: Apache-2.0
// Draft trees for the tests of grow_trees and lay_frontiers: random rules and children with ties
// and dead ends, on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "base/random.hpp"
#include "ops/ops.hpp"
#include "ops/sampling_memory.hpp"

namespace espalier::ops {

inline constexpr std::int64_t kTestPage = 16;
inline constexpr std::int64_t kTestStride = 12;
inline constexpr std::int64_t kTestVocabulary = 50;

// Requests' limits, and how they draw.
struct GrowthCase {
    std::vector<GrowthTree> trees;
    std::vector<std::int32_t> block_tables;  // [trees, kTestStride]
    std::vector<NodeRequest> draws;          // of the roots; lists are laid by GrowthRun
    std::vector<std::vector<LogitBias>> biases;
    std::vector<std::vector<std::int32_t>> banned;
    std::vector<std::vector<TokenCount>> committed;  // by root
    std::int32_t width = 1;                          // of the search
    std::int64_t nodes() const { return std::ssize(trees) * kMaxDrafts; }
};

inline GrowthCase random_growth(Random& random, int most_trees) {
    GrowthCase made;
    const int count = random.between(1, most_trees);
    std::int32_t row = 0;
    for (int i = 0; i < count; ++i) {
        GrowthTree tree;
        GrowthRule& rule = tree.rule;
        rule.depth = random.chance(0.1) ? 0 : random.between(1, 8);
        rule.nodes = random.between(2, kMaxNodes);
        rule.width = random.chance(0.3) ? 1 : random.between(1, kMaxDrafts);
        rule.places = random.between(1, kMaxNodes);
        rule.children = random.between(1, random.chance(0.5) ? 8 : kMaxDrafts);
        rule.coupled = random.between(0, 1);
        rule.root_position = random.between(0, 100);
        rule.root_token = random.between(0, kTestVocabulary - 1);
        rule.table_row = i;
        rule.banned_levels = random.between(0, 3);
        rule.root_row = row;
        if (rule.depth == 0) tree.state.frontier = 0;
        made.width = std::max(made.width, rule.children);
        made.trees.push_back(tree);
        for (std::int64_t page = 0; page < kTestStride; ++page)
            made.block_tables.push_back(random.between(1, 1000));
        if (rule.depth == 0) continue;
        ++row;
        NodeRequest draw{.position = rule.root_position + 1, .choice = random.between(0, 2)};
        draw.parameters.temperature = random.chance(0.5) ? 0.0f : 0.7f;
        draw.parameters.seed = random.bits();
        if (random.chance(0.5)) draw.parameters.frequency_penalty = 0.5f;
        made.draws.push_back(draw);
        made.biases.emplace_back(static_cast<std::size_t>(random.between(0, 3)),
                                 LogitBias{random.between(0, kTestVocabulary - 1), 1.5f});
        made.banned.emplace_back(static_cast<std::size_t>(random.between(0, 2)),
                                 random.between(0, kTestVocabulary - 1));
        made.committed.emplace_back();
        for (std::int32_t token = 0; token < kTestVocabulary; token += random.between(1, 6))
            made.committed.back().push_back({token, random.between(0, 3), random.chance(0.5)});
    }
    if (row == 0) return random_growth(random, most_trees);
    return made;
}

// Children of [rows] nodes, descending, of few values: ties in a node, between nodes and levels;
// some nodes have none.
inline std::vector<DraftChild> random_children(Random& random, std::int64_t rows,
                                               std::int32_t width) {
    std::vector<DraftChild> children(static_cast<std::size_t>(rows * width));
    const bool even = random.chance(0.2);  // halves and wholes: paths tie across levels
    for (std::int64_t row = 0; row < rows; ++row) {
        const int count = random.chance(0.1) ? 0 : random.between(0, width);
        std::vector<DraftChild> found;
        for (int i = 0; i < count; ++i) {
            const double score =
                even ? -static_cast<double>(random.between(0, 2)) : -3.0 * random.unit();
            found.push_back({score, random.between(0, kTestVocabulary - 1),
                             even ? std::max(0.0f, 1.0f + 0.5f * static_cast<float>(score))
                                  : static_cast<float>(1.0 / (1.0 - 2.0 * score))});
        }
        std::stable_sort(found.begin(), found.end(),
                         [](const auto& a, const auto& b) { return a.score > b.score; });
        std::copy(found.begin(), found.end(), children.begin() + row * width);
    }
    return children;
}

// A case in the memory of a device.
class GrowthRun {
  public:
    GrowthRun(Device& device, const Backend& backend, const GrowthCase& made)
        : device_(device),
          backend_(backend),
          arena_(must(device.allocate(64))),
          context_{device, arena_},
          made_(made),
          nodes_(made.nodes()),
          builder_(must(SamplingBatchBuilder::create(capacity()))),
          memory_(must(SamplingMemory::create(device, capacity()))) {
        const auto trees = made.trees.size();
        head_ = must(device.allocate(sizeof(GrowthHead) + trees * sizeof(GrowthTree)));
        node_memory_ = must(device.allocate(trees * kMaxNodes * sizeof(GrowingNode)));
        drafted_ = must(device.allocate(trees * kMaxDrafts * sizeof(DraftedNode)));
        tables_ = must(device.allocate(made.block_tables.size() * sizeof(std::int32_t)));
        upload(tables_.data(), made.block_tables);
        growth_ = {static_cast<std::int32_t>(trees), head_.as<GrowthHead>(),
                   reinterpret_cast<GrowthTree*>(head_.data() + sizeof(GrowthHead)),
                   node_memory_.as<GrowingNode>(), drafted_.as<DraftedNode>()};
        for (Buffer& children : children_)
            children = must(device.allocate(static_cast<std::size_t>(nodes_ * made.width) *
                                            sizeof(DraftChild)));
        SamplingBatch arrays;
        array_bytes_ = place_arrays(arrays, nullptr, nodes_);
        array_memory_ = must(device.allocate(array_bytes_));
        batch_bytes_ = static_cast<std::size_t>(nodes_) * 128;
        batch_memory_ = must(device.allocate(batch_bytes_));
        lay_roots();
    }

    void grow(const std::vector<DraftChild>& plain, const std::vector<DraftChild>& coupled) {
        upload(children_[0].data(), plain);
        upload(children_[1].data(), coupled);
        backend_.grow_trees(
            context_, growth_,
            {children_[0].as<DraftChild>(), children_[1].as<DraftChild>(), made_.width});
    }

    // Everything that a level's pass reads, as bytes; counts along paths apart.
    struct Laid {
        std::vector<std::byte> batch, draws;
        std::vector<std::vector<TokenCount>> counts;  // by node
        bool operator==(const Laid&) const = default;
    };
    Laid lay(std::int64_t nodes, std::int64_t rows) {
        for (Buffer* memory : {&batch_memory_, &array_memory_})
            fine(device_.fill(context_.stream, memory->data(), std::byte{0xFF}, memory->bytes()));
        const FrontierBatch batch = frontier(nodes, rows);
        const FrontierDraws draws{memory_.view_beside(array_memory_.data(), nodes, kTestVocabulary),
                                  changed()};
        backend_.lay_frontiers(context_, growth_, batch, draws);
        // Bytes of a buffer that were asked for: a device may give more.
        Laid laid{download<std::byte>(batch_memory_.data(), batch_bytes_),
                  download<std::byte>(array_memory_.data(), array_bytes_),
                  {}};
        for (std::int64_t g = 0; g < nodes; ++g)  // what lies between the members is anything
            std::fill_n(
                laid.draws.begin() + g * std::int64_t{sizeof(DrawParameters)} +
                    std::int64_t{offsetof(DrawParameters, presence_penalty)} + 4,
                offsetof(DrawParameters, seed) - offsetof(DrawParameters, presence_penalty) - 4,
                std::byte{0});
        read_counts(draws, nodes, laid);
        return laid;
    }

    std::vector<GrowthTree> trees() const { return download<GrowthTree>(growth_.trees, count()); }
    std::vector<GrowingNode> nodes() const {
        return download<GrowingNode>(growth_.nodes, count() * kMaxNodes);
    }
    std::vector<DraftedNode> drafted() const {
        return download<DraftedNode>(growth_.drafted, count() * kMaxDrafts);
    }

  private:
    template <typename T>
    static T must(Expected<T> made) {
        if (!made) throw std::runtime_error(made.error().message);
        return std::move(*made);
    }
    static void fine(const Expected<void>& done) { ASSERT_TRUE(done); }
    template <typename T>
    void upload(void* to, const std::vector<T>& from) {
        fine(device_.upload(context_.stream, to, from.data(), from.size() * sizeof(T)));
    }
    template <typename T>
    std::vector<T> download(const void* from, std::size_t count) const {
        std::vector<T> values(count);
        fine(device_.download(context_.stream, values.data(), from, count * sizeof(T)));
        return values;
    }
    std::size_t count() const { return made_.trees.size(); }
    SamplingCapacity capacity() const {
        return {.nodes = nodes_,
                .requests = std::ssize(made_.trees),
                .vocabulary = kTestVocabulary,
                .max_context = 200,
                .biases = 4,
                .banned = 4,
                .masks = 0};
    }
    std::uint32_t changed() const {
        return static_cast<std::uint32_t>(
            (capacity().batch_bytes() -
             static_cast<std::size_t>(nodes_) * kMaxDrafts * sizeof(TokenCount)) /
            sizeof(std::uint32_t));
    }

    void lay_roots() {
        builder_.begin(std::ssize(made_.draws));
        for (std::size_t i = 0; i < made_.draws.size(); ++i) {
            NodeRequest draw = made_.draws[i];
            draw.biases = builder_.add_biases(made_.biases[i]);
            draw.banned = builder_.add_banned(made_.banned[i]);
            draw.committed = builder_.add_counts(
                static_cast<std::int64_t>(i), {made_.committed[i], std::ssize(made_.committed[i])});
            builder_.add(draw);
        }
        builder_.finish();
        const GrowthHead head{must(memory_.upload(context_.stream, builder_)),
                              std::ssize(made_.trees)};
        upload(head_.data(), std::vector<GrowthHead>{head});
        upload(growth_.trees, made_.trees);
    }

    FrontierBatch frontier(std::int64_t nodes, std::int64_t rows) {
        std::byte* at = batch_memory_.data();
        const auto take = [&at]<typename T>(T*& array, std::int64_t length) {
            array = reinterpret_cast<T*>(at);
            at += (static_cast<std::size_t>(length) * sizeof(T) + 7) / 8 * 8;
        };
        FrontierBatch batch{.capacity = nodes,
                            .rows = rows,
                            .tree_mask = 2,
                            .pad_mask = 1,
                            .block_tables = tables_.as<std::int32_t>(),
                            .block_stride = kTestStride,
                            .page_tokens = kTestPage};
        take(batch.tokens, nodes);
        take(batch.position, nodes);
        take(batch.slot, nodes);
        take(batch.row_of, nodes);
        take(batch.words, nodes);
        take(batch.parent_row, nodes);
        take(batch.q_indptr, rows + 1);
        take(batch.kv_len, rows);
        take(batch.tail_len, rows);
        take(batch.table_row, rows);
        take(batch.mask, rows);
        return batch;
    }

    // Sorted: a path's tokens come in any order.
    void read_counts(const FrontierDraws& draws, std::int64_t nodes, Laid& laid) const {
        for (const ListRange& range :
             download<ListRange>(draws.batch.changed, static_cast<std::size_t>(nodes))) {
            laid.counts.push_back(
                download<TokenCount>(draws.batch.lists + range.first, range.count));
            std::ranges::sort(laid.counts.back(), {}, &TokenCount::token);
        }
    }

    Device& device_;
    const Backend& backend_;
    Arena arena_;
    OpContext context_;
    const GrowthCase& made_;
    std::int64_t nodes_;
    std::size_t array_bytes_ = 0, batch_bytes_ = 0;
    SamplingBatchBuilder builder_;
    SamplingMemory memory_;
    Buffer head_, node_memory_, drafted_, tables_, children_[2], array_memory_, batch_memory_;
    DraftGrowth growth_;
};

}  // namespace espalier::ops
