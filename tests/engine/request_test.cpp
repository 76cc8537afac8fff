// SPDX-License-Identifier: Apache-2.0
#include "engine/request.hpp"

#include <gtest/gtest.h>

#include "engine/harness.hpp"

namespace espalier::engine {
namespace {

class CheckRequest : public testing::Test {
  protected:
    Expected<CheckedRequest> check(const Request& request) const {
        return check_request(request, limits_, *tiny_target(Family::v2).tokenizer);
    }
    std::string refusal(const Request& request) const {
        const auto checked = check(request);
        if (checked) return "taken";
        // A client is told the field apart, and finds it again at the head of the sentence.
        const Error& error = checked.error();
        EXPECT_FALSE(error.field.empty()) << error.message;
        EXPECT_TRUE(error.message.starts_with(error.field + ": ")) << error.message;
        return error.message;
    }
    static RequestLimits small_limits() {
        RequestLimits limits = roomy_limits();
        limits.sizes.max_model_len = 100;
        limits.sizes.page_count = 3;
        return limits;
    }
    RequestLimits limits_ = small_limits();
};

TEST_F(CheckRequest, NamesTheFieldAndBothNumbers) {
    const Request good = plain_request(10, 5, 1);
    EXPECT_EQ(refusal(good), "taken");
    Request bad = good;
    bad.prompt.clear();
    EXPECT_EQ(refusal(bad), "prompt: has no tokens");
    bad = good;
    bad.prompt.resize(100, 3);
    EXPECT_EQ(refusal(bad), "prompt: 100 tokens; prompt and output together may have 100");
    bad = good;
    bad.prompt[3] = 512;
    EXPECT_EQ(refusal(bad), "prompt[3]: token 512 is not an id of the vocabulary of 512");
    bad.prompt[3] = -1;
    EXPECT_EQ(refusal(bad), "prompt[3]: token -1 is not an id of the vocabulary of 512");
    bad = good;
    bad.forced_output = {1, 512};
    EXPECT_EQ(refusal(bad), "forced_output[1]: token 512 is not an id of the vocabulary of 512");
    bad.forced_output = {1, 2};
    bad.output.min_tokens = 1;
    EXPECT_EQ(refusal(bad), "min_tokens: 1, but the output is forced, and min_tokens bans tokens");
    bad = good;
    bad.choices = 0;
    EXPECT_EQ(refusal(bad), "choices: 0, not within 1…128");
    bad = good;
    bad.sampling.temperature = -1;
    EXPECT_EQ(refusal(bad), "temperature: -1, not within 0…100");
    bad = good;
    bad.draft_depth = 64;
    EXPECT_EQ(refusal(bad), "draft_depth: 64, not within 0…63");
    bad = good;
    bad.draft_width = -1;
    EXPECT_EQ(refusal(bad), "draft_width: -1, not within 0…63");
    bad = good;
    bad.draft_nodes = 5;
    bad.speculate = false;
    EXPECT_EQ(refusal(bad), "taken");
}

TEST_F(CheckRequest, PrescribesDraftsWhereOneNumberIsGiven) {
    using Shape = speculate::DraftShape;
    Request request = plain_request(10, 5, 1);
    EXPECT_FALSE(check(request)->drafts);
    const auto shape = [&](std::int32_t depth, std::int32_t width, std::int32_t nodes) {
        request.draft_depth = depth;
        request.draft_width = width;
        request.draft_nodes = nodes;
        return *check(request)->drafts;
    };
    EXPECT_EQ(shape(3, 0, 0), (Shape{.depth = 3, .width = 1, .nodes = 4}));
    EXPECT_EQ(shape(3, 4, 0), (Shape{.depth = 3, .width = 4, .nodes = 13}));
    EXPECT_EQ(shape(3, 4, 7), (Shape{.depth = 3, .width = 4, .nodes = 8}));
    EXPECT_EQ(shape(0, 2, 0), (Shape{.depth = 4, .width = 2, .nodes = 9}));
    EXPECT_EQ(shape(0, 0, 2), (Shape{.depth = 2, .width = 1, .nodes = 3}));
    EXPECT_EQ(shape(63, 63, 0), (Shape{.depth = 63, .width = 63, .nodes = 64}));
    request.speculate = false;  // a hint that cannot apply
    ASSERT_TRUE(check(request));
    EXPECT_FALSE(check(request)->drafts);
}

TEST_F(CheckRequest, CutsMaxTokensToTheRoomThatIsLeft) {
    const auto checked = check(plain_request(90, 50, 1));
    ASSERT_TRUE(checked);
    EXPECT_EQ(checked->rules.options().max_tokens, 10);
    EXPECT_EQ(checked->rules.options().eos_token_ids, std::vector{1});
    EXPECT_FALSE(checked->rules.options().count_tokens);
}

TEST_F(CheckRequest, RefusesWhatTheCacheCannotHold) {
    limits_.sizes.page_count = 2;
    EXPECT_EQ(refusal(plain_request(60, 5, 1)), "taken");  // the last token needs no slot
    EXPECT_EQ(refusal(plain_request(60, 6, 1)),
              "max_tokens: 6 after a prompt of 60 tokens need 2 pages; the cache has 1");
}

// Exhausted means: not now. Whoever hears that tries again.
TEST_F(CheckRequest, WhatCanNeverRunIsInvalidNotExhausted) {
    limits_.sizes.page_count = 2;
    for (const Request& request : {plain_request(100, 5, 1), plain_request(60, 6, 1)}) {
        const auto checked = check(request);
        ASSERT_FALSE(checked);
        EXPECT_EQ(checked.error().kind, ErrorKind::invalid) << checked.error().message;
    }
}

TEST_F(CheckRequest, RefusesWhatTheEmptyQueueCannotHold) {
    limits_.sizes.max_waiting = 3;
    limits_.sizes.max_waiting_tokens = 25;
    Request request = plain_request(10, 5, 1);
    request.choices = 2;
    EXPECT_EQ(refusal(request), "taken");
    request.choices = 3;
    EXPECT_EQ(refusal(request), "prompt: 10 tokens for 3 choices; the queue takes 25 tokens");
    request.choices = 4;
    EXPECT_EQ(refusal(request), "choices: 4, not within 1…3");
    EXPECT_EQ(check(request).error().kind, ErrorKind::invalid);
}

// The prompt's own logprobs are the answer; nothing is drawn.
TEST_F(CheckRequest, TakesNoTokensOnlyWithThePromptsLogprobs) {
    Request request = plain_request(100, 0, 1);
    EXPECT_EQ(refusal(request), "max_tokens: 0, at least 1 (or 0 with prompt_logprobs)");
    request.output.prompt_top_logprobs = 0;
    EXPECT_EQ(refusal(request), "taken");  // it may fill the whole context
    EXPECT_EQ(check(request)->rules.options().max_tokens, 0);
    request.output.min_tokens = 1;
    EXPECT_EQ(refusal(request), "min_tokens: 1, not within 0…max_tokens = 0");
    request = plain_request(101, 0, 1);
    request.output.prompt_top_logprobs = 0;
    EXPECT_EQ(refusal(request), "prompt: 101 tokens; prompt and output together may have 100");
    limits_.sizes.page_count = 2;
    request = plain_request(64, 0, 1);
    request.output.prompt_top_logprobs = 0;
    EXPECT_EQ(refusal(request), "taken");
    request = plain_request(65, 0, 1);
    request.output.prompt_top_logprobs = 0;
    EXPECT_EQ(refusal(request),
              "max_tokens: 0 after a prompt of 65 tokens need 2 pages; the cache has 1");
    request.output.max_tokens = -1;
    EXPECT_EQ(refusal(request), "max_tokens: -1, at least 1 (or 0 with prompt_logprobs)");
}

TEST_F(CheckRequest, CountsTokensWherePenaltiesNeedThem) {
    Request request = plain_request(10, 5, 1);
    request.sampling.presence_penalty = 0.5f;
    EXPECT_TRUE(check(request)->rules.options().count_tokens);
}

}  // namespace
}  // namespace espalier::engine
