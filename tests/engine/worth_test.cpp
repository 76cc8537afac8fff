// SPDX-License-Identifier: Apache-2.0
// Worth of each part of the speculation policy: the time that its removal costs on simulated
// servers. docs/speculation.md has the table that this test makes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/simulated_load.hpp"
#include "engine/simulated_machines.hpp"

namespace espalier::engine {
namespace {

using Drafters = std::vector<SimulatedDrafter>;

// A drafter without passes and two draft models.
Drafters drafters(double right, double right_in_chats) {
    const SimulatedDrafter model{.right = right, .right_in_chats = right_in_chats};
    SimulatedDrafter free = model, other = model;
    free.passes = false;
    free.offers = 0.5;
    other.right *= 0.9;
    return {free, other, model};
}

SimulatedMachine noisy(SimulatedMachine machine, std::uint64_t seed) {
    machine.noise = 0.05;
    machine.outliers = 1.0 / 300;
    machine.plan_row = 0.3;
    machine.free_node = 0.03;
    machine.seed = seed;
    return machine;
}

// Time that a load takes on a machine, in any unit.
struct Case {
    std::string name;
    SimulatedMachine machine;
    std::function<double(const SimulatedMachine&)> time;
};

Case load_case(const std::string& name, const SimulatedMachine& machine, const Drafters& drafters,
               const SimulatedLoad& load) {
    return {name, machine, [=](const SimulatedMachine& one) {
                SimulatedLoad seeded = load;
                seeded.seed = one.seed;
                return 1 / simulate(one, drafters, seeded).tokens_per_second;
            }};
}

Case start_case(const std::string& name, const SimulatedMachine& machine) {
    return {name, machine, [](const SimulatedMachine& one) {
                return simulate_starts(one, drafters(0.8, 0.8), 120, 0);
            }};
}

// Steps of repeating texts behind chats, of whose steps a fifth are disturbed.
Case chats_case(const SimulatedMachine& machine) {
    return {"behind disturbed chats", machine, [](const SimulatedMachine& one) {
                const SimulatedDrafter free{
                    .passes = false, .right = 0.9, .spread = 0.05, .right_in_chats = 0.3};
                const SimulatedDrafter model{.right = 0.75, .right_in_chats = 0.6};
                const auto steps = simulate(one, {free, model}, SimulatedChats{});
                return static_cast<double>(std::reduce(steps.begin(), steps.end()));
            }};
}

std::vector<Case> cases() {
    SimulatedMachine disturbed = kSaplingCpu;
    disturbed.burst_steps = 12;
    disturbed.bursts = 0.25 / 12;
    const Drafters good = drafters(0.7, 0.7), wrong = drafters(0, 0);
    return {
        load_case("one client", kSaplingH200, drafters(0.85, 0.85), {.steps = 1500}),
        load_case("32 clients", kSaplingH200, good,
                  {.clients = 32, .spread_lengths = true, .steps = 300}),
        load_case("8 clients, V2-Lite", kV2LiteH200, good,
                  {.clients = 8, .spread_lengths = true, .steps = 300}),
        load_case("128, never right", kSaplingH200, wrong,
                  {.clients = 128, .spread_lengths = true, .steps = 300}),
        load_case("every second text hard", kSaplingCpu, drafters(0.85, 0.02),
                  {.spread_lengths = true, .steps = 1500, .chats = 0.5}),
        load_case("bursts", disturbed, good, {.spread_lengths = true, .steps = 1500}),
        chats_case(disturbed),
        load_case("a fifth prescribed", kSaplingH200, good,
                  {.clients = 8, .spread_lengths = true, .steps = 600, .prescribed = 0.2}),
        load_case("texts begin together", kSaplingH200, good,
                  {.clients = 32, .spread_lengths = true, .in_batches = true, .steps = 300}),
        start_case("cold starts, CPU", kSaplingCpu),
        start_case("cold starts, H200", kSaplingH200),
    };
}

constexpr std::uint64_t kSeeds = 6;

// Time of a case without a part of the policy, or with all of it, by seed.
std::vector<double> times(const Case& one, std::optional<speculate::PolicyPart> without) {
    std::vector<double> seconds;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SimulatedMachine machine = noisy(one.machine, 10 * seed);
        machine.without = without;
        seconds.push_back(one.time(machine));
    }
    return seconds;
}

// Percent by which times are longer, in the mean of their logarithms.
double longer(const std::vector<double>& without, const std::vector<double>& with) {
    double sum = 0;
    for (std::size_t i = 0; i < with.size(); ++i) sum += std::log(without[i] / with[i]);
    return 100 * (std::exp(sum / static_cast<double>(with.size())) - 1);
}

constexpr std::array<std::pair<speculate::PolicyPart, const char*>, 11> kParts = {
    {{speculate::PolicyPart::acceptance, "`AcceptanceTable`: guesses alone"},
     {speculate::PolicyPart::request_bias, "`RequestBias`: requests are alike"},
     {speculate::PolicyPart::step_time, "`StepTime`: as fitted to the first steps"},
     {speculate::PolicyPart::draft_time, "`DraftTime`: as of the first calls"},
     {speculate::PolicyPart::shapes, "`DraftPlanner`: chains of three"},
     {speculate::PolicyPart::grant, "`NodeBudget`: all is verified"},
     {speculate::PolicyPart::rates, "`MeasuredRate`: no way is suspended"},
     {speculate::PolicyPart::watch, "`Watch`: no model is left behind"},
     {speculate::PolicyPart::free_drafts, "limit of free drafts"},
     {speculate::PolicyPart::looks, "looking of suspended drafters"},
     {speculate::PolicyPart::short_pauses, "short pauses of drafters that are right"}}};

// Percent by which each load takes longer without a part; and two tables of it, one for readers
// (mean and largest) and one of all loads.
struct Tables {
    std::string page, loads;
};

Tables tables() {
    const std::vector<Case> loads = cases();
    Tables made{"| without | mean | most |\n|---|--:|---|\n", "| without |"};
    std::string rule = "|---|";
    std::vector<std::vector<double>> with;
    for (const Case& one : loads) {
        made.loads += fmt::format(" {} |", one.name);
        rule += "--:|";
        with.push_back(times(one, std::nullopt));
    }
    made.loads += "\n" + rule + "\n";
    for (const auto& [part, name] : kParts) {
        made.loads += fmt::format("| {} |", name);
        double sum = 0, most = -100;
        std::size_t where = 0;
        for (std::size_t i = 0; i < loads.size(); ++i) {
            const double cost = longer(times(loads[i], part), with[i]);
            made.loads += fmt::format(" {:+.1f} |", cost);
            sum += cost;
            if (cost <= most) continue;
            most = cost;
            where = i;
        }
        made.loads += "\n";
        made.page += fmt::format("| {} | {:+.1f} | {:+.1f}, {} |\n", name,
                                 sum / static_cast<double>(loads.size()), most, loads[where].name);
    }
    return made;
}

#if !defined(ESPALIER_SANITIZED)
TEST(PolicyWorth, PagesHaveWhatTheRemovalOfEachPartCosts) {
    const auto has = [](const std::string& path, const std::string& made) {
        std::ifstream file(ESPALIER_DOCS + path);
        const std::string page{std::istreambuf_iterator<char>(file), {}};
        EXPECT_NE(page.find(made), std::string::npos) << path << " needs:\n" << made;
    };
    const Tables made = tables();
    has("/speculation.md", made.page);
    has("/lab/speculation.md", made.loads);
}
#endif

}  // namespace
}  // namespace espalier::engine
