// SPDX-License-Identifier: Apache-2.0
// The policy is a function of its facts: those of a run, told to another policy that starts from
// the same memory, give the same decisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "engine/simulated_load.hpp"
#include "engine/simulated_machines.hpp"

namespace espalier::engine {
namespace {

using speculate::DraftPolicy;
using speculate::PolicyFact;

struct Told {
    PolicyFact fact;
    std::vector<std::int64_t> decisions;
};

std::vector<std::int64_t> decisions_of(const DraftPolicy& policy) {
    std::vector<std::int64_t> all = {policy.asks(), policy.reads(), policy.prescribes(),
                                     policy.plans(), policy.disturbed()};
    for (speculate::DrafterId d = 0; d < 3; ++d) {
        all.insert(all.end(), {policy.awake(d), policy.pause(d, false), policy.pause(d, true)});
        for (std::size_t row = 0; row < policy.granted().size(); ++row) {
            const speculate::DraftShape shape = policy.shape(d, row);
            all.insert(all.end(), {shape.depth, shape.width, shape.nodes});
        }
    }
    all.insert(all.end(), policy.granted().begin(), policy.granted().end());
    return all;
}

const std::vector<SimulatedDrafter> kDrafters = {
    {.passes = false, .right = 0.6, .offers = 0.5}, {.right = 0.7}, {.right = 0.5}};

std::vector<Told> run(const speculate::Memory& memory) {
    std::vector<Told> told;
    SimulatedMachine machine = kSaplingCpu;
    machine.noise = 0.2;
    machine.outliers = 0.01;
    machine.observer = [&](const PolicyFact& fact, const DraftPolicy& after) {
        told.push_back({fact, decisions_of(after)});
    };
    simulate(
        machine, kDrafters,
        {.clients = 3, .spread_lengths = true, .steps = 600, .prescribed = 0.1, .known = memory});
    return told;
}

TEST(PolicyReplay, FactsOfARunGiveItsDecisionsAgain) {
    speculate::Memory learnt;
    simulate_starts(kSaplingCpu, kDrafters, 200, 0, {}, &learnt);
    ASSERT_FALSE(learnt.drafters.empty());
    std::vector<std::string> names;
    for (const auto& drafter : learnt.drafters) names.push_back(drafter.name);
    for (const speculate::Memory& memory : {speculate::Memory{}, learnt}) {
        const std::vector<Told> told = run(memory);
        ASSERT_GT(told.size(), 1000u);
        DraftPolicy again({.drafters = kDrafters.size(), .max_rows = 3});
        again.remember(memory, names);
        std::size_t granted = 0;
        for (std::size_t i = 0; i < told.size(); ++i) {
            again.take_any(told[i].fact);
            ASSERT_EQ(decisions_of(again), told[i].decisions) << "fact " << i;
            granted += std::ranges::any_of(again.granted(), [](auto n) { return n > 0; });
        }
        EXPECT_GT(granted, 100u);
    }
}

}  // namespace
}  // namespace espalier::engine
