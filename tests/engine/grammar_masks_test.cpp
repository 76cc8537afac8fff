// SPDX-License-Identifier: Apache-2.0
// Masks, node by node. The target reads each node's text back through all that the engine lays out
// (fake_target.hpp), and the mask that came with the node must be that of a fresh matcher behind
// that text. One of the changes that Espalier comes from computed masks from draft tokens in the
// order of another batch; the first test here is that batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/fake_target.hpp"
#include "engine/grammar_drafter.hpp"
#include "engine/harness.hpp"
#include "grammar/matcher.hpp"
#include "speculate/ngram.hpp"

namespace espalier::engine {
namespace {

using grammar::Kind;
using grammar::Specification;

class GrammarMasks : public testing::Test {
  protected:
    std::shared_ptr<const grammar::CompiledGrammar> compile(const Specification& specification) {
        auto compiled = tiny_target(Family::v2).compiler->compile(specification);
        if (!compiled) throw std::runtime_error(compiled.error().message);
        return *compiled;
    }
    // Prompts begin with a token of their own: how a node tells whose it is.
    Request request(std::int32_t first_token, std::size_t prompt_length, std::int64_t max_tokens,
                    const Specification* specification = nullptr) {
        Request made =
            plain_request(prompt_length, max_tokens, static_cast<std::uint64_t>(first_token));
        made.prompt.front() = first_token;
        if (specification == nullptr) return made;
        made.grammar = compile(*specification);
        made.output.ignore_eos = false;
        return made;
    }
};

struct Counts {
    std::int64_t masks = 0, in_trees = 0, free = 0, beside_chunks = 0;
};

// Holds every node of the last step to its request.
void expect_fresh(const FakeTarget& target, const std::map<std::int32_t, Request>& requests,
                  bool chunks, Counts& counts) {
    for (const FakeTarget::AskedNode& node : target.asked()) {
        if (node.prefix.empty() || node.wanted != ops::kDraw) continue;  // a pad, a prompt's token
        const Request& request = requests.at(node.prefix.front());
        if (!request.grammar) {
            EXPECT_TRUE(node.allowed.empty());
            ++counts.free;
            continue;
        }
        grammar::Matcher matcher(request.grammar, grammar::Masks::filled_anew);
        bool legal = true;
        for (std::size_t i = request.prompt.size(); i < node.prefix.size(); ++i)
            legal = legal && matcher.accept(node.prefix[i]);
        ASSERT_TRUE(legal) << "an illegal draft is verified";
        if (matcher.finished()) continue;
        std::vector<std::uint32_t> mask(grammar::mask_words(kTinyVocabulary));
        matcher.fill_mask(mask);
        ASSERT_EQ(node.allowed, mask)
            << "behind " << node.prefix.size() - request.prompt.size() << " tokens";
        ++counts.masks;
        counts.in_trees += node.of_tree ? 1 : 0;
        counts.beside_chunks += node.of_tree && chunks ? 1 : 0;
    }
}

Harness::Drafters random_drafters(const std::vector<std::vector<std::int32_t>>& texts,
                                  const text::Tokenizer& tokenizer) {
    Harness::Drafters drafters;
    drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    drafters.push_back(std::make_unique<GrammarDrafter>(tokenizer));
    std::vector<std::int32_t> palette;
    for (std::int32_t token = 5; token < 120; ++token) palette.push_back(token);
    drafters.push_back(std::make_unique<RandomDrafter>(
        7, RandomDrafterOptions{.truth = 0.6, .silence = 0.1, .truth_last = true}, texts, palette));
    return drafters;
}

const Specification kObject{
    .kind = Kind::json_schema,
    .text = R"({"type":"object","properties":{"names":{"type":"array","items":{"type":"string",
        "maxLength":3},"minItems":4,"maxItems":9},"count":{"type":"integer"}},
        "required":["names","count"],"additionalProperties":false})"};
const Specification kWords{.kind = Kind::regex, .text = "([a-d]{1,3}-){8,20}[0-9]+"};

// Chunks of long prompts lie first in the batch and trees after them, in every step: whatever index
// a mask was found by, it must be the node's own.
TEST_F(GrammarMasks, OfTreesBehindPromptChunksAreThoseOfAFreshMatcherAtEveryNode) {
    std::map<std::int32_t, Request> requests;
    requests.emplace(20, request(20, 30, 120, &kObject));
    requests.emplace(21, request(21, 70, 120, &kWords));
    requests.emplace(22, request(22, 40, 120));
    for (std::int32_t late = 30; late < 36; ++late)
        requests.emplace(late, request(late, 400, 12, late % 2 == 0 ? &kObject : nullptr));

    // Texts that each gives alone, so that the drafter can be right on later branches.
    std::vector<std::vector<std::int32_t>> texts;
    const text::Tokenizer& tokenizer = *tiny_target(Family::v2).tokenizer;
    const auto fake = [] {
        return std::make_unique<FakeTarget>(
            kTinyVocabulary,
            model::ModelLimits{.max_tokens = 1024, .max_gather = 512, .max_kv_len = 4096}, 129);
    };
    StepperSettings settings = roomy_settings();
    settings.schedule.page_count = 129;
    for (const auto& [first, one] : requests) {
        Harness alone(fake(), tokenizer, settings);
        const auto recorder = alone.submit(one);
        alone.run();
        texts.push_back(whole_text(one, recorder->choice(0).output));
    }

    settings.schedule.prompt_quantum = 16;
    settings.schedule.max_step_tokens = 16 + 8 + 120;
    auto owned = fake();
    FakeTarget& target = *owned;
    Harness harness(std::move(owned), tokenizer, settings, random_drafters(texts, tokenizer));
    std::map<std::int32_t, std::shared_ptr<Recorder>> recorders;
    for (const auto& [first, one] : requests)
        if (first < 30) recorders[first] = harness.submit(one);
    Counts counts;
    for (int step = 0; step < 2000 && (step < 30 || !harness.stepper->idle()); ++step) {
        const std::int32_t late = 30 + (step - 4) / 4;
        if (step >= 4 && step % 4 == 0 && late < 36)
            recorders[late] = harness.submit(requests.at(late));
        const StepReport report = harness.stepper->step();
        const bool chunks = report.tokens.prompt_absorbed + report.tokens.prompt_decompressed > 0;
        expect_fresh(target, requests, chunks, counts);
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(counts.in_trees, 100);
    EXPECT_GT(counts.beside_chunks, 20);
    EXPECT_GT(counts.free, 50);
    std::size_t i = 0;
    for (const auto& [first, one] : requests)
        EXPECT_EQ(whole_text(one, recorders.at(first)->choice(0).output), texts[i++]);
}

// Reasoning, an end marker inside a tree, a budget that runs out below the root: by node.
TEST_F(GrammarMasks, FollowTheReasoningOfEachPath) {
    constexpr std::int32_t kMarker = 300;
    Request one = request(20, 12, 60, &kWords);
    one.reasoning = accept::ReasoningRule{.end_token_ids = {kMarker}, .budget = 9};
    const text::Tokenizer& tokenizer = *tiny_target(Family::v2).tokenizer;
    // Trees in which the reasoning ends at every depth, and goes on beside that.
    std::vector<std::vector<std::int32_t>> texts;
    for (std::size_t length = 0; length <= 9; ++length) {
        texts.push_back(one.prompt);
        for (std::size_t i = 0; i < length; ++i) texts.back().push_back(40);
        texts.back().push_back(kMarker);
        for (int i = 0; i < 6; ++i)
            texts.back().push_back(*tokenizer.id_of(i % 2 == 0 ? "a" : "-"));
    }
    auto owned = std::make_unique<FakeTarget>(
        kTinyVocabulary,
        model::ModelLimits{.max_tokens = 1024, .max_gather = 512, .max_kv_len = 4096}, 65);
    FakeTarget& target = *owned;
    Harness::Drafters drafters;
    drafters.push_back(std::make_unique<RandomDrafter>(
        3, RandomDrafterOptions{.truth = 0.7, .silence = 0}, texts,
        std::vector<std::int32_t>{kMarker, 40, *tokenizer.id_of("a"), 1}));
    drafters.push_back(std::make_unique<GrammarDrafter>(tokenizer));
    Harness harness(std::move(owned), tokenizer, roomy_settings(), std::move(drafters));
    const auto recorder = harness.submit(one);
    std::int64_t reasoning = 0, exhausted = 0, masked = 0;
    while (!harness.stepper->idle()) {
        harness.stepper->step();
        for (const FakeTarget::AskedNode& node : target.asked()) {
            if (node.prefix.empty()) continue;
            const std::vector<std::int32_t> output(node.prefix.begin() + std::ssize(one.prompt),
                                                   node.prefix.end());
            const auto marker = std::ranges::find(output, kMarker);
            if (marker == output.end() && output.size() < 9) {
                EXPECT_TRUE(node.allowed.empty());
                EXPECT_EQ(node.banned, std::vector<std::int32_t>{1});
                ++reasoning;
                continue;
            }
            std::vector<std::uint32_t> mask(grammar::mask_words(kTinyVocabulary));
            if (marker == output.end()) {
                mask[kMarker / 32] = 1u << kMarker % 32;
                ++exhausted;
            } else {
                grammar::Matcher matcher(one.grammar, grammar::Masks::filled_anew);
                for (auto token = marker + 1; token != output.end(); ++token)
                    ASSERT_TRUE(matcher.accept(*token));
                if (matcher.finished()) continue;
                matcher.fill_mask(mask);
                ++masked;
            }
            ASSERT_EQ(node.allowed, mask);
        }
    }
    EXPECT_GT(reasoning, 5);
    EXPECT_GT(exhausted, 0);
    EXPECT_GT(masked, 10);
    const RecordedChoice& got = recorder->choice(0);
    EXPECT_LE(got.usage.reasoning_tokens, 9);
    EXPECT_EQ(got.output.tokens[static_cast<std::size_t>(got.usage.reasoning_tokens)].token,
              kMarker);
}

// Forced text comes as a chain of the grammar's own drafter, in a tenth of the steps.
TEST_F(GrammarMasks, ForcedTextIsDraftedAndAccepted) {
    const Specification fixed{.kind = Kind::json_schema,
                              .text = R"({"const":"the whole of this text is known beforehand"})",
                              .any_whitespace = false};
    for (const bool speculate : {true, false}) {
        Request one = request(20, 12, 100, &fixed);
        one.speculate = speculate;
        Harness::Drafters drafters;
        drafters.push_back(std::make_unique<GrammarDrafter>(*tiny_target(Family::v2).tokenizer));
        Harness harness(tiny_target(Family::v2), roomy_settings(), std::move(drafters));
        const auto recorder = harness.submit(one);
        harness.run();
        const RecordedChoice& got = recorder->choice(0);
        EXPECT_EQ(got.output.text, "\"the whole of this text is known beforehand\"");
        EXPECT_EQ(got.output.finish.reason, accept::FinishReason::eos);
        if (speculate) {
            EXPECT_GT(got.usage.accepted_from[0], 5);
            EXPECT_LT(got.usage.steps, got.usage.completion_tokens / 2);
        } else {
            EXPECT_EQ(got.usage.drafted, 0);
            EXPECT_EQ(got.usage.steps, got.usage.completion_tokens);
        }
    }
    const std::vector<std::string> names = [] {
        Harness::Drafters drafters;
        drafters.push_back(std::make_unique<GrammarDrafter>(*tiny_target(Family::v2).tokenizer));
        return Harness(tiny_target(Family::v2), roomy_settings(), std::move(drafters))
            .stepper->speculation()
            .names();
    }();
    EXPECT_EQ(names, std::vector<std::string>{"grammar"});
}

// A token that the grammar refuses although it was drawn under its mask: what no sampler does. The
// request ends with a reason, and nobody else notices.
TEST_F(GrammarMasks, AGrammarThatFailsEndsItsOwnRequest) {
    auto owned = std::make_unique<FakeTarget>(
        kTinyVocabulary,
        model::ModelLimits{.max_tokens = 1024, .max_gather = 512, .max_kv_len = 4096}, 65);
    FakeTarget& target = *owned;
    Harness harness(std::move(owned), *tiny_target(Family::v2).tokenizer);
    const Request free = request(21, 20, 40);
    const auto other = harness.submit(free);
    std::vector<std::shared_ptr<Recorder>> held;
    for (const std::int64_t max_tokens : {100, 1})
        held.push_back(harness.submit(request(20, 12, max_tokens, &kWords)));
    target.fault = FakeTarget::Fault::ignore_masks;
    harness.run();
    const RecordedChoice& failed = held[0]->choice(0);
    EXPECT_EQ(failed.output.finish.reason, accept::FinishReason::interrupted);
    EXPECT_EQ(failed.ended, Interruption::grammar_failed);
    // Its only token was also its last: it has ended by that.
    EXPECT_EQ(held[1]->choice(0).output.finish.reason, accept::FinishReason::length);
    std::vector<std::int32_t> chain = free.prompt;
    for (int i = 0; i < 40; ++i) chain.push_back(target.next_token(chain));
    EXPECT_EQ(whole_text(free, other->choice(0).output), chain);
    EXPECT_EQ(harness.stepper->ends().of(Interruption::grammar_failed), 1);
}

TEST_F(GrammarMasks, WhatDoesNotGoWithAGrammarIsRefusedByItsName) {
    const auto refused = [&](auto change) {
        Request one = request(20, 12, 60, &kWords);
        change(one);
        const auto checked = check_request(one, roomy_limits(), *tiny_target(Family::v2).tokenizer);
        return checked ? std::string() : checked.error().field;
    };
    EXPECT_EQ(refused([](Request&) {}), "");
    EXPECT_EQ(refused([](Request& one) { one.output.ignore_eos = true; }), "ignore_eos");
    EXPECT_EQ(refused([](Request& one) { one.output.min_tokens = 2; }), "min_tokens");
    EXPECT_EQ(refused([](Request& one) { one.forced_output = {7}; }), "forced_output");
    EXPECT_EQ(refused([](Request& one) { one.output.eos_token_ids = {9}; }), "eos_token_ids");
    const auto rule = [](std::vector<std::int32_t> ends, std::optional<std::int64_t> budget) {
        return accept::ReasoningRule{.end_token_ids = std::move(ends), .budget = budget};
    };
    EXPECT_EQ(refused([&](Request& one) { one.reasoning = rule({300}, 0); }), "");
    EXPECT_EQ(refused([&](Request& one) { one.reasoning = rule({}, {}); }),
              "reasoning.end_token_ids");
    EXPECT_EQ(refused([&](Request& one) { one.reasoning = rule({1}, {}); }),
              "reasoning.end_token_ids");
    EXPECT_EQ(refused([&](Request& one) { one.reasoning = rule({9000}, {}); }),
              "reasoning.end_token_ids[0]");
    EXPECT_EQ(refused([&](Request& one) { one.reasoning = rule({300}, -1); }), "reasoning.budget");
    EXPECT_EQ(refused([&](Request& one) {
                  one.grammar = nullptr;
                  one.forced_output = {7};
                  one.reasoning = rule({300}, 4);
              }),
              "forced_output");
}

}  // namespace
}  // namespace espalier::engine
