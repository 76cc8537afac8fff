// SPDX-License-Identifier: Apache-2.0
// Draft trees on a GPU are the plain version's, bit for bit, level after level: random rules,
// ties inside nodes, between nodes and between levels, dead ends, counts along paths, pads.
#include <cstring>

#include "base/cpu_device.hpp"
#include "ops/cuda/gpu.hpp"
#include "ops/growth_cases.hpp"

namespace espalier::ops {
namespace {

template <typename T>
bool same(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

class GpuGrowth : public testing::Test {
  protected:
    // Returns how many nodes were drafted.
    std::int64_t compare(Random& random, int most_trees) {
        const GrowthCase made = random_growth(random, most_trees);
        GrowthRun wanted(host_, *reference_, made), got(*gpu_.device, *gpu_.backend, made);
        std::int64_t rows = std::ssize(made.draws), drafted = 0;
        for (int level = 0; level < 9 && rows > 0; ++level) {
            const auto plain = random_children(random, rows, made.width);
            const auto coupled = random_children(random, rows, made.width);
            wanted.grow(plain, coupled);
            got.grow(plain, coupled);
            drafted = expect_same_trees(wanted, got);
            std::int64_t nodes = 0, trees = 0;
            for (const GrowthTree& tree : wanted.trees()) {
                nodes += tree.state.frontier;
                trees += tree.state.frontier > 0 ? 1 : 0;
            }
            if (nodes == 0 || HasFailure()) break;
            const std::int64_t pads =
                std::min<std::int64_t>(random.between(0, 3), made.nodes() - nodes);
            const GrowthRun::Laid plainly = wanted.lay(nodes + pads, trees + pads);
            const GrowthRun::Laid laid = got.lay(nodes + pads, trees + pads);
            const auto where = [&] {
                return ::testing::Message() << "level " << level << ", " << nodes << " nodes of "
                                            << trees << " trees, " << pads << " pads";
            };
            EXPECT_TRUE(laid.batch == plainly.batch) << where();
            EXPECT_TRUE(laid.draws == plainly.draws) << where();
            EXPECT_TRUE(laid.counts == plainly.counts) << where();
            EXPECT_LE(expect_same_trees(wanted, got), made.nodes());
            rows = nodes + pads;
        }
        return drafted;
    }

    std::int64_t expect_same_trees(const GrowthRun& wanted, const GrowthRun& got) {
        const auto trees = wanted.trees(), other_trees = got.trees();
        const auto nodes = wanted.nodes(), other_nodes = got.nodes();
        const auto drafted = wanted.drafted(), other_drafted = got.drafted();
        std::int64_t total = 0;
        for (std::size_t tree = 0; tree < trees.size(); ++tree) {
            EXPECT_TRUE(same(trees[tree], other_trees[tree])) << tree;
            if (trees[tree].rule.depth == 0) continue;
            for (std::size_t n = 0; n < static_cast<std::size_t>(trees[tree].state.nodes); ++n) {
                EXPECT_TRUE(same(nodes[tree * kMaxNodes + n], other_nodes[tree * kMaxNodes + n]))
                    << tree << ", " << n;
                if (n == 0) continue;
                EXPECT_TRUE(same(drafted[tree * kMaxDrafts + n - 1],
                                 other_drafted[tree * kMaxDrafts + n - 1]))
                    << tree << ", " << n;
                ++total;
            }
        }
        return total;
    }

    CpuDevice host_{1};
    std::unique_ptr<Backend> reference_ = make_reference_backend();
    Gpu gpu_;
};

TEST_F(GpuGrowth, TreesAreThePlainOnes) {
    Random random(5);
    std::int64_t drafted = 0;
    for (int round = 0; round < 300 && !HasFailure(); ++round) drafted += compare(random, 6);
    EXPECT_GT(drafted, 10000);
}
// More than one block lays at a time.
TEST_F(GpuGrowth, ManyTreesAreThePlainOnes) {
    Random random(6);
    for (int round = 0; round < 4 && !HasFailure(); ++round) compare(random, 700);
}

}  // namespace
}  // namespace espalier::ops
