// SPDX-License-Identifier: Apache-2.0
// The order of launches on a GPU, without one: grants are derived as the table says, declarations
// are what kernels touch, and each declaration is needed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>

#include "ops/order/steps.hpp"
#include "support/paths.hpp"

namespace espalier::order_test {
namespace {

// An H200.
DeviceFacts hopper() {
    DeviceFacts facts{.major = 9,
                      .multiprocessors = 132,
                      .processor_shared_bytes = 228 * 1024,
                      .block_shared_bytes = 227 * 1024,
                      .processor_registers = 65536};
    for (int n = 1; n <= kMostClusterBlocks; ++n)
        facts.clusters[static_cast<std::size_t>(n)] = 132 / n;
    return facts;
}

enum class Calls { all, each_once, dense, experts, apart };

// A step's launches, with the memory and weights that their kernels' models use.
struct Recorded {
    using Change = std::function<void(LaunchNeeds&)>;

    explicit Recorded(const Shape& shape, Calls calls = Calls::all, Change change = {}) {
        recording.facts = hopper();
        recording.change = std::move(change);
        layer = std::make_unique<Layer>(recording, shape);
        if (calls == Calls::all) run_layers(*layer);
        if (calls == Calls::each_once) run_each_once(*layer);
        if (calls == Calls::dense || calls == Calls::experts) layer->run(calls == Calls::experts);
        if (calls == Calls::apart) layer->run_apart();
    }
    Recording recording;
    std::unique_ptr<Layer> layer;
};

// A layer's launches and grants do not depend on what is in front of it.
std::string grants_of(const Shape& shape, Calls calls) {
    Recorded recorded(shape, calls);
    return grants_of(recorded.recording);
}

// Sequences of launches with what they are granted, each behind the steps that have it: of a model
// in a format, absorbed tokens / all.
std::string table_of_grants() {
    using Steps = std::vector<std::pair<std::string, std::string>>;  // of a model
    std::map<std::string, std::size_t> index;
    std::vector<std::pair<std::string, Steps>> sequences;
    const auto add = [&](const Step& step, const char* layer, Calls calls) {
        const std::string grants = grants_of(step.shape, calls);
        const auto [found, fresh] = index.try_emplace(grants, sequences.size());
        if (fresh) sequences.push_back({grants, {}});
        Steps& steps = sequences[found->second].second;
        const std::string who = step.name + layer;
        if (steps.empty() || steps.back().first != who) steps.push_back({who, ""});
        steps.back().second += fmt::format(" {}/{}", step.shape.absorbed, step.shape.tokens);
    };
    for (const auto& [layer, calls] :
         {std::pair{", dense:", Calls::dense}, std::pair{", experts:", Calls::experts},
          std::pair{", keys apart:", Calls::apart}}) {
        for (const Step& step : published_steps()) add(step, layer, calls);
        for (const Step& step : small_steps()) add(step, layer, calls);
    }
    std::string text;
    for (const auto& [grants, steps] : sequences) {
        for (const auto& [who, tokens] : steps) text += who + tokens + "\n";
        text += "    " + grants + "\n";
    }
    return text;
}

TEST(Order, GrantsOfAllKindsOfStepsAreThoseOfTheTable) {
    const std::string path = std::string(test::source_directory()) + "/tests/ops/order/grants.txt";
    std::ifstream in(path);
    const std::string expected{std::istreambuf_iterator<char>(in), {}};
    const std::string got = table_of_grants();
    if (got == expected) return;
    const std::string left = testing::TempDir() + "grants.txt";
    std::ofstream(left) << got;
    FAIL() << path << " is not what the order grants now: " << left;
}

TEST(Order, StepsTouchWhatTheyDeclareAndHaveTheirBitsInTheWorstOrder) {
    for (const Step& step : small_steps()) {
        Recorded recorded(step.shape);
        EXPECT_EQ(verify(recorded.recording), "") << step.name;
    }
}

// Verdict of verify() in a process of its own, which may break.
bool is_seen(Recording& recording) {
    const pid_t child = fork();
    if (child == 0) {
        bool seen = true;
        try {
            seen = !verify(recording).empty();
        } catch (const std::exception&) {
        }
        _exit(seen ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}

// One declaration of one launch of a step, inverted.
struct Inversion {
    std::string what;
    std::function<void(LaunchNeeds&)> change;
};

void invert(Release& release) {
    release = release == Release::at_once ? Release::behind_wait : Release::at_once;
}

void add_dropped(std::vector<Inversion>& all, const char* list, Ranges LaunchNeeds::*ranges,
                 const LaunchNeeds& needs) {
    for (std::size_t i = 0; i < (needs.*ranges).size(); ++i)
        all.push_back({fmt::format("{} without range {}", list, i),
                       [ranges, i](LaunchNeeds& changed) { (changed.*ranges).remove(i); }});
}

std::vector<Inversion> inversions_of(const LaunchNeeds& needs, const LaunchGrant& grant) {
    std::vector<Inversion> all;
    add_dropped(all, "reads", &LaunchNeeds::reads, needs);
    add_dropped(all, "writes", &LaunchNeeds::writes, needs);
    if (grant.ahead) {
        add_dropped(all, "ahead", &LaunchNeeds::ahead, needs);
        all.push_back({"nothing ahead", [](LaunchNeeds& changed) {
                           changed.reads.add(changed.ahead);
                           changed.ahead = {};
                       }});
    }
    if (grant.early)
        all.push_back({"not early", [](LaunchNeeds& changed) { changed.early = false; }});
    if (grant.holds_next)
        all.push_back({"nothing held back", [](LaunchNeeds& changed) { changed.holds_back = {}; }});
    if (!grant.holds_next && !needs.early)
        all.push_back(
            {"all held back", [](LaunchNeeds& changed) { changed.holds_back = {kAllMemory}; }});
    if (!grant.holds_next)
        all.push_back({"another release", [grant](LaunchNeeds& changed) {
                           invert(grant.early   ? changed.release_early
                                  : grant.ahead ? changed.release_ahead
                                                : changed.release);
                       }});
    return all;
}

// Declarations of a step with many tokens that small ones have are not inverted again.
bool is_inverted(const Step& step, const LaunchNeeds& needs) {
    return step.shape.tokens < 100 ||
           std::string_view(needs.name).find("arrang") != std::string_view::npos;
}

TEST(Order, EveryDeclarationIsNeeded) {
    int inverted = 0;
    for (const Step& step : small_steps()) {
        const Recorded plain(step.shape, Calls::each_once);
        const std::string grants = grants_of(plain.recording);
        for (std::size_t launch = 0; launch < plain.recording.launches.size(); ++launch) {
            const auto& [needs, grant] = plain.recording.launches[launch];
            if (!is_inverted(step, needs)) continue;
            for (const Inversion& inversion : inversions_of(needs, grant)) {
                std::size_t at = 0;
                Recorded changed(step.shape, Calls::each_once, [&](LaunchNeeds& one) {
                    if (at++ == launch) inversion.change(one);
                });
                ++inverted;
                if (grants_of(changed.recording) != grants) continue;
                EXPECT_TRUE(is_seen(changed.recording))
                    << step.name << ", launch " << launch << ", " << needs.name << ": "
                    << inversion.what;
            }
        }
    }
    RecordProperty("inverted", inverted);
    std::printf("%d declarations were inverted\n", inverted);
    EXPECT_GT(inverted, 1000);
}

}  // namespace
}  // namespace espalier::order_test
