// SPDX-License-Identifier: Apache-2.0
// Which kernel a GPU would run, without one: plans are functions of the problem and of the device's
// facts, and the kernels for few tokens are the entries of one table.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "linalg/cuda/few_plan.hpp"
#include "linalg/cuda/hopper/arranged_plan.hpp"
#include "linalg/cuda/many_plan.hpp"

namespace espalier::linalg::cuda {
namespace {

constexpr WeightCode kCodes[] = {WeightCode::bf16, WeightCode::e4m3, WeightCode::int8,
                                 WeightCode::int4, WeightCode::e2m1};

// An H200 by default.
DeviceFacts hopper(int multiprocessors = 132) {
    DeviceFacts facts{.major = 9,
                      .multiprocessors = multiprocessors,
                      .processor_shared_bytes = 228 * 1024,
                      .block_shared_bytes = 227 * 1024,
                      .processor_registers = 65536};
    for (int n = 1; n <= kMostClusterBlocks; ++n)
        facts.clusters[static_cast<std::size_t>(n)] = multiprocessors / n;
    return facts;
}

// A card of another family with little shared memory: an RTX 3090.
DeviceFacts small_card() {
    return {.major = 8,
            .minor = 6,
            .multiprocessors = 82,
            .processor_shared_bytes = 100 * 1024,
            .block_shared_bytes = 99 * 1024,
            .processor_registers = 65536};
}

enum class Kind { alone, heads, experts, gated, gated_experts, joint, single, leading };
constexpr Kind kKinds[] = {Kind::alone,         Kind::heads, Kind::experts, Kind::gated,
                           Kind::gated_experts, Kind::joint, Kind::single,  Kind::leading};

const std::int32_t kIndptr[] = {0};
const std::byte kWeights[1] = {};

Problem problem_of(WeightCode code, Kind kind, int n, int k, int tokens) {
    const WeightFormat format{
        .code = code, .group_k = in_groups(code) ? 32 : 128, .scale = ScaleType::bf16};
    Problem p;
    p.code = code;
    p.half_bytes = half_bytes(format);
    p.n = n;
    p.k = k;
    p.x_rows = p.rows = tokens;
    p.matrix_bytes = tiles_of(n) * chunks_of(k) * 2 * p.half_bytes;
    p.vector_x = kind != Kind::single;
    p.gated = kind == Kind::gated || kind == Kind::gated_experts;
    if (kind == Kind::heads) p.groups = 16;
    if (kind == Kind::experts || kind == Kind::gated_experts || kind == Kind::leading) {
        p.groups = 64;
        p.rows = 6 * tokens;
        p.indptr = kIndptr;
    }
    if (kind == Kind::joint) p.second.n = 576;
    if (kind == Kind::leading) {
        p.lead.weights = kWeights;
        p.lead.n = n;
        p.lead.k = 2 * k;
        p.lead.rows = tokens;
        if (segments_of(n, 2 * k).count != segments_of(n, k).count) p.lead.k = k;
    }
    return p;
}

// Calls visit(problem) for products of 1 … 64 tokens of many shapes.
template <typename Visit>
void for_shapes(WeightCode code, const Visit& visit) {
    for (const Kind kind : kKinds)
        for (const int n :
             {16, 64, 192, 512, 576, 1408, 1536, 2048, 2816, 4096, 7168, 10944, 24576, 102400})
            for (const int k :
                 {128, 192, 256, 512, 768, 1408, 1536, 2048, 2816, 4096, 7168, 10944, 16384, 18432})
                for (int tokens = 1; tokens <= 64; ++tokens)
                    if (kind != Kind::leading || tokens <= 8)
                        visit(problem_of(code, kind, n, k, tokens));
}

std::string text_of(const FewKernel& kernel) {
    return fmt::format("input {}, {} × 8 tokens, {} × 16 outputs, segments of {}",
                       static_cast<int>(kernel.input), kernel.token_tiles, kernel.row_tiles,
                       kernel.segment);
}

// A plan that no kernel is compiled for, and a kernel that no plan wants, are both mistakes.
TEST(FewPlan, PlansAndCompiledKernelsAreTheSameTable) {
    for (const WeightCode code : kCodes) {
        const FewKernels table = few_kernels(code);
        std::set<const FewKernel*> reached;
        for_shapes(code, [&](const Problem& p) {
            const FewKernel kernel = few_plan(p, hopper()).kernel;
            const auto* entry = std::find(table.begin(), table.end(), kernel);
            ASSERT_NE(entry, table.end()) << name_of(code) << ", " << text_of(kernel) << ": n "
                                          << p.n << ", k " << p.k << ", rows " << p.rows;
            const bool few = p.lead.weights != nullptr || many_plan(p, hopper()).tokens == 0;
            if (few) reached.insert(entry);
        });
        for (const FewKernel& kernel : table) {
            EXPECT_TRUE(reached.count(&kernel)) << name_of(code) << ", " << text_of(kernel);
            EXPECT_EQ(std::count(table.begin(), table.end(), kernel), 1) << text_of(kernel);
        }
    }
}

// A block's shared memory as GPUs have it: Hopper 227 KB, Ampere's largest 163, cards 99.
TEST(FewPlan, BlocksFitWhatTheDeviceHas) {
    for (const std::size_t limit : {227, 163, 99}) {
        const DeviceFacts facts = limited(hopper(), {.block_shared_bytes = limit * 1024});
        for (const WeightCode code : kCodes)
            for_shapes(code, [&](const Problem& p) {
                const FewPlan plan = few_plan(p, facts);
                ASSERT_TRUE(few_kernels(code).has(plan.kernel)) << text_of(plan.kernel);
                // A joined launch that does not fit is not made.
                if (p.lead.weights != nullptr) return;
                ASSERT_LE(shared_bytes(p, plan), facts.block_shared_bytes)
                    << name_of(code) << ", " << text_of(plan.kernel) << ": n " << p.n << ", k "
                    << p.k << ", rows " << p.rows;
            });
    }
}

// V2-Lite's shapes, whose dense product leads.
TEST(FewPlan, LeadingProductsFitASmallCard) {
    for (const WeightCode code : kCodes)
        for (const auto& [n, k] : {std::pair{2816, 2048}, {2048, 1408}}) {
            const Problem p = problem_of(code, Kind::leading, n, k, 8);
            const FewPlan small = few_plan(p, small_card()), large = few_plan(p, hopper());
            EXPECT_TRUE(fits(p, small, small_card())) << text_of(small.kernel) << ": k " << k;
            EXPECT_TRUE(fits(p, large, hopper())) << text_of(large.kernel) << ": k " << k;
            if (code == WeightCode::bf16 && k == 1408) {
                EXPECT_EQ(small.kernel.row_tiles, 1);
                EXPECT_EQ(large.kernel.row_tiles, 2);
            }
        }
}

// Many tokens on the portable family: tiles that it has kernels for, no clusters, and x is never
// arranged.
TEST(ManyPlan, PortableTilesAreThoseThatAreCompiled) {
    const DeviceFacts facts = small_card();
    std::byte memory{};
    for (const WeightCode code : kCodes) {
        std::set<int> reached;
        for (const Kind kind : kKinds)
            for (const int n : {512, 2048, 7168, 24576})
                for (const int tokens : {1, 8, 16, 24, 32, 48, 64, 100, 128, 512, 2048, 8192}) {
                    const Problem p = problem_of(code, kind, n, 2048, tokens);
                    const ManyPlan plan = many_plan(p, facts);
                    ASSERT_EQ(plan.split, 1);
                    reached.insert(plan.tokens);
                    ASSERT_FALSE(arranges(p, {&memory, arranged_bytes(p.rows, p.k)}, facts));
                }
        std::set<int> compiled = {0, 32, 64};
        if (!in_blocks(code)) compiled.insert(128);
        EXPECT_EQ(reached, compiled) << name_of(code);
    }
}

using Plans = std::tuple<FewPlan, ManyPlan, ArrangedPlan>;

Plans plans_of(const Problem& p, const DeviceFacts& facts) {
    return {few_plan(p, facts), many_plan(p, facts), arranged_plan(p, facts)};
}

struct Differences {
    int few = 0, many = 0, arranged = 0;

    bool operator==(const Differences&) const = default;
};

// Plans that two devices make otherwise, asked in turns.
Differences differences(const DeviceFacts& a, const DeviceFacts& b) {
    Differences found;
    for (const WeightCode code : kCodes)
        for (const Kind kind : {Kind::alone, Kind::heads, Kind::experts})
            for (const int n : {512, 1536, 2048, 7168, 24576})
                for (const int k : {512, 2048, 7168})
                    for (const int tokens : {1, 8, 16, 32, 48, 64, 128, 512, 2048}) {
                        const Problem p = problem_of(code, kind, n, k, tokens);
                        const Plans one = plans_of(p, a), two = plans_of(p, b);
                        found.few += std::get<0>(one) != std::get<0>(two);
                        found.many += std::get<1>(one) != std::get<1>(two);
                        found.arranged += std::get<2>(one) != std::get<2>(two);
                    }
    return found;
}

// Nothing of one device is remembered when another plans: the counts are those of two processes
// that plan for one device each.
TEST(Plans, OfTwoDevicesFollowTheirOwnFacts) {
    const DeviceFacts large = hopper(132), small = limited(large, {.multiprocessors = 40});
    EXPECT_EQ(small.clusters[8], 5);
    const Differences expected = {.few = 249, .many = 479, .arranged = 150};
    EXPECT_EQ(differences(large, small), expected);
    EXPECT_EQ(differences(small, large), expected);
    EXPECT_EQ(differences(small, small), Differences());
}

}  // namespace
}  // namespace espalier::linalg::cuda
