// SPDX-License-Identifier: Apache-2.0
// grow_trees and lay_frontiers: which nodes are run, where their KV lies, what is drafted. Held to
// trees that grow by themselves here, with all nodes that were ever seen.
#include <cstring>

#include "base/cpu_device.hpp"
#include "base/portable_math.hpp"
#include "ops/growth_cases.hpp"

namespace espalier::ops {
namespace {

// One tree with every node that was found; nothing is forgotten or moved.
class SlowTree {
  public:
    struct Node {
        std::int32_t token = 0, parent = -1, depth = 0, place = -1, row = -1;
        float score = 1;
        double path = 1;
    };
    explicit SlowTree(const GrowthRule& rule) : rule_(rule) {
        nodes_.push_back({.token = rule.root_token, .place = 0, .row = rule.root_row});
        if (rule.depth > 0) frontier_ = {0};
    }
    const std::vector<std::int32_t>& frontier() const { return frontier_; }
    Node& node(std::int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }

    void add(std::int32_t parent, const DraftChild& child, float score) {
        const Node above = node(parent);
        kept_.push_back(static_cast<std::int32_t>(nodes_.size()));
        nodes_.push_back({.token = child.token,
                          .parent = parent,
                          .depth = above.depth + 1,
                          .score = score,
                          .path = above.path * static_cast<double>(score)});
    }
    void next_level() {
        std::sort(kept_.begin(), kept_.end(), [this](std::int32_t a, std::int32_t b) {
            const Node &left = node(a), &right = node(b);
            if (left.path != right.path) return left.path > right.path;
            return left.depth != right.depth ? left.depth < right.depth : a < b;
        });
        kept_.resize(std::min(kept_.size(), static_cast<std::size_t>(rule_.nodes - 1)));
        frontier_.clear();
        if (++level_ >= rule_.depth) return;
        for (const std::int32_t index : kept_) {
            if (node(index).depth != level_ || node(index).path < kLeastPath) continue;
            if (std::ssize(frontier_) >= rule_.width || used_ >= rule_.places) return;
            node(index).place = used_++;
            frontier_.push_back(index);
        }
    }
    // Nodes in DraftedNode's form.
    std::vector<DraftedNode> drafted() {
        std::vector<std::int32_t> place(nodes_.size(), -1);
        place[0] = 0;
        std::vector<DraftedNode> drafted;
        for (const std::int32_t index : kept_) {
            place[static_cast<std::size_t>(index)] = static_cast<std::int32_t>(drafted.size()) + 1;
            drafted.push_back({node(index).token,
                               place[static_cast<std::size_t>(node(index).parent)],
                               node(index).score});
        }
        return drafted;
    }
    std::int32_t used() const { return used_; }

  private:
    GrowthRule rule_;
    std::vector<Node> nodes_;
    std::vector<std::int32_t> kept_, frontier_;
    std::int32_t used_ = 1, level_ = 0;
};

// Children of a row by the definition, with their scores.
void add_found(SlowTree& tree, std::int32_t index, const GrowthRule& rule,
               const std::vector<DraftChild>& found, std::int32_t width) {
    const auto begin = found.begin() + std::int64_t{tree.node(index).row} * width;
    double total = 0;
    for (auto child = begin; child < begin + rule.children && child->token >= 0; ++child)
        total += portable_exp(child->score - begin->score);
    float least = 1;
    for (auto child = begin; child < begin + rule.children && child->token >= 0; ++child) {
        const auto share = static_cast<float>(portable_exp(child->score - begin->score) / total);
        least = std::min(least, rule.coupled != 0 ? share : child->probability);
        tree.add(index, *child, least);
    }
}

class GrowthTest : public testing::Test {
  protected:
    CpuDevice device_{1};
    std::unique_ptr<Backend> backend_ = make_cpu_backend(CpuVariant::portable);
};

TEST_F(GrowthTest, RandomTreesAreThoseThatForgetNothing) {
    Random random(11);
    std::int64_t drafted = 0, levels = 0;
    for (int round = 0; round < 300; ++round) {
        const GrowthCase made = random_growth(random, 5);
        GrowthRun run(device_, *backend_, made);
        std::vector<SlowTree> slow;
        for (const GrowthTree& tree : made.trees) slow.emplace_back(tree.rule);
        std::int64_t rows = std::ssize(made.draws);
        while (rows > 0) {
            ++levels;
            const auto plain = random_children(random, rows, made.width);
            const auto coupled = random_children(random, rows, made.width);
            run.grow(plain, coupled);
            rows = 0;
            for (std::size_t i = 0; i < slow.size(); ++i) {
                const GrowthRule& rule = made.trees[i].rule;
                if (slow[i].frontier().empty()) continue;
                const std::vector<std::int32_t> frontier = slow[i].frontier();
                for (const std::int32_t index : frontier)
                    add_found(slow[i], index, rule, rule.coupled != 0 ? coupled : plain,
                              made.width);
                slow[i].next_level();
                ASSERT_LE(std::ssize(slow[i].frontier()), rule.width);
                ASSERT_LE(slow[i].used(), rule.places);
                for (const std::int32_t index : slow[i].frontier())
                    slow[i].node(index).row = static_cast<std::int32_t>(rows++);
            }
            const auto trees = run.trees();
            const auto got = run.drafted();
            for (std::size_t i = 0; i < slow.size(); ++i) {
                const std::vector<DraftedNode> want = slow[i].drafted();
                ASSERT_EQ(trees[i].state.nodes - 1, std::ssize(want));
                ASSERT_EQ(trees[i].state.frontier, std::ssize(slow[i].frontier()));
                for (std::size_t n = 0; n < want.size(); ++n) {
                    const DraftedNode& node = got[i * kMaxDrafts + n];
                    ASSERT_EQ(node.token, want[n].token) << round << ", " << i << ", " << n;
                    ASSERT_EQ(node.parent, want[n].parent);
                    ASSERT_EQ(node.score, want[n].score);
                }
                drafted += std::ssize(want);
            }
            if (rows > 0) run.lay(rows, std::ssize(made.trees));
        }
    }
    EXPECT_GT(drafted, 10000);
    EXPECT_GT(levels, 500);
}

// One tree whose children are given level by level.
struct OneTree {
    explicit OneTree(GrowthRule rule) {
        made.width = rule.children = 3;
        rule.table_row = 0;
        made.trees = {{rule, {}}};
        made.block_tables.assign(kTestStride, 7);
        for (std::int64_t i = 0; i < kTestStride; ++i)
            made.block_tables[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(100 + i);
        made.draws = {{}};
        made.draws[0].parameters.frequency_penalty = 1.0f;
        made.biases = {{}};
        made.banned = {{9}};
        made.committed = {{{.token = 4, .in_output = 2, .in_prompt = true}}};
    }
    GrowthCase made;
};

// Siblings that were seen beside the chain take the nodes that it leaves; a node's slot, position,
// word and counts are those of its path.
TEST_F(GrowthTest, AChainWithSiblings) {
    OneTree one({.depth = 2,
                 .width = 1,
                 .nodes = 4,
                 .places = 8,
                 .root_position = 15,
                 .root_token = 5,
                 .banned_levels = 1});
    GrowthRun run(device_, *backend_, one.made);
    run.grow({{-1, 4, 0.5f}, {-2, 2, 0.4f}, {-3, 3, 0.1f}}, {{}, {}, {}});
    EXPECT_EQ(run.trees()[0].state.frontier, 1);
    const GrowingNode chosen = run.nodes()[1];
    EXPECT_EQ(chosen.token, 4);
    EXPECT_EQ(chosen.place, 1);
    EXPECT_EQ(chosen.word, 3u);
    const GrowthRun::Laid laid = run.lay(2, 2);
    const auto* const ints = reinterpret_cast<const std::int32_t*>(laid.batch.data());
    EXPECT_EQ(ints[0], 4);   // token
    EXPECT_EQ(ints[2], 16);  // position
    std::int64_t slot = 0;
    std::memcpy(&slot, laid.batch.data() + 16, sizeof(slot));
    EXPECT_EQ(slot, 101 * kTestPage);  // the second page's first
    ASSERT_EQ(laid.counts.size(), 2u);
    ASSERT_EQ(laid.counts[0].size(), 1u);
    EXPECT_EQ(laid.counts[0][0], (TokenCount{.token = 4, .in_output = 3, .in_prompt = true}));
    EXPECT_TRUE(laid.counts[1].empty());  // a pad
    std::vector<DraftChild> second = {{-1, 4, 0.6f}, {-2, 6, 0.3f}, {}};
    second.resize(6);
    run.grow(second, second);
    EXPECT_EQ(run.trees()[0].state.frontier, 0);
    ASSERT_EQ(run.trees()[0].state.nodes, 4);
    const auto drafted = run.drafted();  // 0.5, 0.4, 0.5 · 0.6
    EXPECT_EQ(drafted[0].token, 4);
    EXPECT_EQ(drafted[1].token, 2);
    EXPECT_EQ(drafted[2].token, 4);
    EXPECT_EQ(drafted[2].parent, 1);
}

TEST_F(GrowthTest, NothingIsDraftedBelowWhatWillNotBe) {
    OneTree one({.depth = 9, .width = 4, .nodes = 20, .places = 64});
    GrowthRun run(device_, *backend_, one.made);
    run.grow({{-1, 1, 0.9f}, {-2, 2, 0.019f}, {-3, 3, 0.001f}}, {{}, {}, {}});
    EXPECT_EQ(run.trees()[0].state.frontier, 1);  // 0.019 is below the least
    run.lay(1, 1);
    run.grow({{}, {}, {}}, {{}, {}, {}});  // and a node without children ends it
    EXPECT_EQ(run.trees()[0].state.frontier, 0);
    EXPECT_EQ(run.trees()[0].state.nodes, 4);
}

// Rounding does not put a child before the one that was found before it.
TEST_F(GrowthTest, NoScoreRises) {
    OneTree one({.depth = 1, .width = 1, .nodes = 4, .places = 1});
    GrowthRun run(device_, *backend_, one.made);
    run.grow({{-1, 1, 0.25f}, {-1, 2, 0.5f}, {-1, 3, 0.25f}}, {{}, {}, {}});
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(run.drafted()[i].token, static_cast<std::int32_t>(i) + 1);
        EXPECT_EQ(run.drafted()[i].score, 0.25f);
    }
}

}  // namespace
}  // namespace espalier::ops
