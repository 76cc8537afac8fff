// SPDX-License-Identifier: Apache-2.0
// Lossless, as equality of bits: whatever the batch, the chunks, the trees, the cache, preemption
// and the others' coming and going do, each request's output is that of the same request run
// alone, plainly (lossless/check.hpp). Here on tiny models with poisoned tokens; `espalier selftest
// lossless` runs the same on any model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/harness.hpp"
#include "engine/tiny_target.hpp"
#include "lossless/check.hpp"

namespace espalier::lossless {
namespace {

#if defined(ESPALIER_LONG_RUN)
constexpr std::uint64_t kFirstSeed = 1'000'000, kWorkloads = 2000, kLongWorkloads = 100;
#elif defined(ESPALIER_SANITIZED)
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 20;
#else
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 100;
#endif

struct Seeds {
    std::uint64_t first, count;
};

// One that failed is looked at by its seed.
Seeds seeds(std::uint64_t count) {
    const char* one = std::getenv("ESPALIER_WORKLOAD");
    return one == nullptr ? Seeds{kFirstSeed, count} : Seeds{std::strtoull(one, nullptr, 10), 1};
}

using Generator = Workload (*)(std::uint64_t, const Subject&);

void expect_lossless(const Seeds& seeds, Generator generator, Coverage& coverage) {
    for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
        const Subject target =
            engine::tiny_target(seed % 2 == 0 ? engine::Family::v2 : engine::Family::v3).target();
        const auto verdict = check_workload(generator(seed, target), target);
        ASSERT_TRUE(verdict) << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
        coverage.add(verdict->coverage);
    }
}

TEST(Lossless, EveryRequestEqualsItselfRunAloneAndPlainly) {
    Coverage coverage;
    const Seeds wanted = seeds(kWorkloads);
    expect_lossless(wanted, &random_workload, coverage);
    const std::uint64_t count = wanted.count;
    if (HasFatalFailure()) return;
    if (count < kWorkloads) return;
    const auto workloads = static_cast<std::int64_t>(count);
    EXPECT_GT(coverage.tokens, 30 * workloads);
    EXPECT_GT(coverage.accepted, 3 * workloads);
    EXPECT_GT(coverage.moved, workloads);
    EXPECT_GT(coverage.hits, 10 * workloads);
    if (kWorkloads >= 100) {  // rarer things: twenty workloads need not have them all
        for (const std::int64_t seen :
             {coverage.preemptions, coverage.interrupted, coverage.bad_numbers,
              coverage.stop_strings, coverage.eos, coverage.prompt_logprobs, coverage.broken,
              coverage.accepted_beside})
            EXPECT_GT(seen, 0);
    }
    RecordProperty("tokens", static_cast<int>(coverage.tokens));
    RecordProperty("accepted", static_cast<int>(coverage.accepted));
    RecordProperty("moved", static_cast<int>(coverage.moved));
    RecordProperty("preemptions", static_cast<int>(coverage.preemptions));
    RecordProperty("hit_tokens", static_cast<int>(coverage.hits));
}

// The same with a cache of e4m3 latents: other numbers, as lossless.
TEST(Lossless, AnFp8CacheToo) {
    const Subject subject = engine::tiny_target(engine::Family::v3_fp8_cache).target();
    ASSERT_EQ(subject.model.kv_layout().planes[0].format, mla::KvFormat::fp8_token);
    for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kWorkloads / 10; ++seed) {
        const auto verdict = check_workload(random_workload(seed, subject), subject);
        ASSERT_TRUE(verdict) << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
    }
}

// Speculation that starts from what it has learnt elsewhere, or from numbers that make no sense.
TEST(Lossless, WhateverSpeculationRemembersToo) {
    const auto steps = speculate::StepTime::fit(
        std::vector<speculate::StepSample>{{{1, 1, 0}, 1e-3}, {{1, 8, 0}, 2e-3}});
    ASSERT_TRUE(steps);
    const Subject subject = engine::tiny_target(engine::Family::v3).target();
    std::int64_t accepted = 0;
    for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kWorkloads / 4; ++seed) {
        Random random(seed);
        const bool sensible = seed % 2 == 0;
        const auto any = [&] {
            return sensible ? 20 * random.unit() : std::pow(10.0, -9 + 14 * random.unit());
        };
        Workload work = random_workload(seed, subject);
        work.settings.grant = engine::NodeGrant::measured;
        speculate::Memory& memory = work.settings.memory;
        for (const char* name : {"random", "ngram", "mtp", "eagle3", "grammar"}) {
            speculate::DrafterMemory drafter{name, speculate::AcceptanceTable().save(0), {}};
            for (std::size_t i = 0; i < drafter.acceptance.size(); i += 2) {
                drafter.acceptance[i] = any();
                drafter.acceptance[i + 1] = random.unit() * drafter.acceptance[i];
            }
            for (int call = 0; call < 4; ++call)
                for (const double number : {1.0 + random.between(0, 7), 8.0, 1e-3 * any()})
                    drafter.calls.push_back(number);
            memory.drafters.push_back(std::move(drafter));
        }
        memory.step_time = steps->save();
        memory.rates = speculate::MeasuredRate().save();
        for (double& number : memory.rates) number = any();
        if (!sensible)
            for (double& number : memory.step_time) number *= any();
        const auto verdict = check_workload(work, subject);
        ASSERT_TRUE(verdict) << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
        accepted += verdict->coverage.accepted;
    }
    EXPECT_GT(accepted, 0);
}

// And with weights of four bits.
TEST(Lossless, Int4WeightsToo) {
    const Subject subject = engine::tiny_target(engine::Family::v3_int4).target();
    ASSERT_EQ(subject.model.weights().format.code, WeightCode::int4);
    for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kWorkloads / 10; ++seed) {
        const auto verdict = check_workload(random_workload(seed, subject), subject);
        ASSERT_TRUE(verdict) << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
    }
}

// Prompts whose form changes at other pages of one text, in chunks and beside each other, and so
// that later ones find what earlier ones left: 256 is absorbed throughout and shares nothing.
TEST(Lossless, PromptsOfOneTextWhoseFormsChangeElsewhereToo) {
    const Subject subject = engine::tiny_target(engine::Family::v3).target();
    for (const std::int64_t quantum : {7, 64, 512}) {
        Workload work;
        work.random_drafter = false;
        work.settings = engine::roomy_settings();
        work.settings.schedule.prompt_quantum = quantum;
        work.settings.schedule.max_rows = 4;
        work.settings.schedule.max_step_tokens = 4 + quantum;
        std::int64_t findable = 0;
        for (const std::size_t length : {513, 256, 257, 319, 320, 321, 383, 448, 449}) {
            WorkloadRequest one;
            one.request = engine::plain_request(600, 3, 1);
            one.request.prompt.resize(length);
            one.request.prompt.back() = 2 + static_cast<std::int32_t>(work.requests.size());
            one.request.logprobs = true;
            one.arrival = 200 * static_cast<int>(work.requests.size());  // when the others are over
            if (!work.requests.empty() && length > 256) findable += (length - 1) / 64 * 64;
            work.requests.push_back(one);
        }
        const auto verdict = check_workload(work, subject);
        ASSERT_TRUE(verdict) << verdict.error().message;
        EXPECT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
        EXPECT_EQ(verdict->coverage.hits, findable);
    }
}

// Value of a request that does not name the parameter.
template <typename T>
std::remove_cvref_t<T> default_of(const accept::Parameter& wanted) {
    std::remove_cvref_t<T> found{};
    const accept::SamplingOptions defaults;
    accept::SamplingOptions::parameters(
        [&](const accept::Parameter& parameter, const auto& value) {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>,
                                         std::remove_cvref_t<T>>)
                if (std::string_view(parameter.name) == wanted.name) found = value;
        },
        defaults);
    return found;
}

// A parameter that workloads leave alone would be lossless by default: each one is tried.
TEST(Workloads, TryEverySamplingParameter) {
    const Subject target = engine::tiny_target(engine::Family::v3).target();
    std::map<std::string, int> tried;
    int requests = 0;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        for (const WorkloadRequest& one : random_workload(seed, target).requests) {
            ++requests;
            accept::SamplingOptions::parameters(
                [&](const accept::Parameter& parameter, const auto& value) {
                    tried[parameter.name] +=
                        value == default_of<decltype(value)>(parameter) ? 0 : 1;
                },
                one.request.sampling);
        }
    }
    EXPECT_GE(tried.size(), 9u);
    for (const auto& [name, count] : tried) EXPECT_GT(count, requests / 20) << name;
}

#if defined(ESPALIER_LONG_RUN)  // a second for each
TEST(Lossless, LongPromptsAndNextTurnsToo) {
    Coverage coverage;
    const Seeds wanted = seeds(kLongWorkloads);
    expect_lossless(wanted, &long_workload, coverage);
    if (HasFatalFailure() || wanted.count < kLongWorkloads) return;
    for (const std::int64_t seen : {coverage.preemptions, coverage.hits, coverage.prompt_logprobs})
        EXPECT_GT(seen, 0);
    RecordProperty("preemptions", static_cast<int>(coverage.preemptions));
    RecordProperty("hit_tokens", static_cast<int>(coverage.hits));
}
#endif

TEST(Lossless, ADifferenceIsSeen) {
    const Subject target = engine::tiny_target(engine::Family::v2).target();
    const auto checked = engine::check_request(engine::plain_request(20, 10, 5),
                                               {.vocabulary = target.vocabulary(),
                                                .sizes = {.page_count = 4, .max_model_len = 64},
                                                .eos_token_ids = {}},
                                               target.tokenizer);
    ASSERT_TRUE(checked) << checked.error().message;
    const auto output = PlainRunner(target).run(*checked, 0);
    ASSERT_TRUE(output) << output.error().message;
    EXPECT_EQ(difference(*output, *output), "");
    Output other = *output;
    other.tokens[3].logprob = std::nextafter(other.tokens[3].logprob, 0.0f);
    EXPECT_NE(difference(other, *output), "");
    other = *output;
    other.tokens.pop_back();
    EXPECT_EQ(difference(other, *output), "9 tokens, not 10");
    other = *output;
    other.finish.reason = accept::FinishReason::eos;
    EXPECT_NE(difference(other, *output), "");
}

TEST(Lossless, ASmallOrNarrowModelIsRefused) {
    Subject target = engine::tiny_target(engine::Family::v2).target();
    EXPECT_TRUE(check_subject(target));
    target.poisoned = target.vocabulary() - 63;
    const auto refused = check_subject(target);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "workloads need a vocabulary of 64, the model has 63");
}

}  // namespace
}  // namespace espalier::lossless
