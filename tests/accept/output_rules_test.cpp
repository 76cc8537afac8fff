// SPDX-License-Identifier: Apache-2.0
#include "accept/output_rules.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "accept/tiny_tokenizer.hpp"

namespace espalier::accept {
namespace {

constexpr std::int64_t kVocabulary = 300;

OutputOptions plain() {
    OutputOptions options;
    options.max_tokens = 10;
    return options;
}

std::string message_after(const std::function<void(OutputOptions&)>& change) {
    OutputOptions options = plain();
    change(options);
    const auto rules = OutputRules::make(options, tiny_tokenizer(), kVocabulary);
    if (rules) return "accepted";
    const Error& error = rules.error();
    EXPECT_TRUE(!error.field.empty() && error.message.starts_with(error.field + ": "))
        << error.message;
    return error.message;
}

TEST(OutputRules, NameWhatTheyRefuse) {
    const std::pair<std::function<void(OutputOptions&)>, std::string> cases[] = {
        {[](auto& o) { o.max_tokens = 0; },
         "max_tokens: 0, at least 1 (or 0 with prompt_logprobs)"},
        {[](auto& o) { o.min_tokens = 11; }, "min_tokens: 11, not within 0…max_tokens = 10"},
        {[](auto& o) { o.min_tokens = -1; }, "min_tokens: -1, not within 0…max_tokens = 10"},
        {[](auto& o) { o.top_logprobs = 21; }, "top_logprobs: 21, not within 0…20"},
        {[](auto& o) { o.top_logprobs = -1; }, "top_logprobs: -1, not within 0…20"},
        {[](auto& o) { o.prompt_top_logprobs = 21; }, "prompt_logprobs: 21, not within 0…20"},
        {[](auto& o) { o.stop.assign(17, "x"); }, "stop: 17 strings, at most 16"},
        {[](auto& o) {
             o.stop = {"x", ""};
         },
         "stop[1]: an empty string"},
        {[](auto& o) { o.stop = {std::string(257, 'x')}; }, "stop[0]: 257 bytes, at most 256"},
        {[](auto& o) { o.stop = {"ab\xe4\xbd"}; }, "stop[0]: no UTF-8 from byte 2 of 4 on"},
        {[](auto& o) { o.stop_token_ids.assign(65, 1); }, "stop_token_ids: 65 ids, at most 64"},
        {[](auto& o) {
             o.stop_token_ids = {1, 300};
         },
         "stop_token_ids[1]: 300 is not an id of the vocabulary of 300"},
        {[](auto& o) { o.eos_token_ids = {-1}; },
         "eos_token_ids[0]: -1 is not an id of the vocabulary of 300"},
    };
    for (const auto& [change, message] : cases) EXPECT_EQ(message_after(change), message);
}

TEST(OutputRules, TakeWhatLiesAtTheLimits) {
    EXPECT_EQ(message_after([](auto& o) {
                  o.stop.assign(16, std::string(256, 'x'));
                  o.stop_token_ids.assign(64, 299);
                  o.top_logprobs = 20;
                  o.prompt_top_logprobs = 20;
                  o.min_tokens = 10;
              }),
              "accepted");
}

TEST(OutputRules, KnowWhichTokensEnd) {
    OutputOptions options = plain();
    options.eos_token_ids = {7, 5};
    options.stop_token_ids = {9, 5};
    options.stop = {std::string(kTurn), std::string(kTool), "a"};
    const OutputRules rules = OutputRules::make(options, tiny_tokenizer(), kVocabulary).value();
    const std::vector<std::int32_t> ending(rules.ending_tokens().begin(),
                                           rules.ending_tokens().end());
    // "<tool>" and "a" are found in the text; the text of "<|turn|>" may be skipped.
    EXPECT_EQ(ending, (std::vector<std::int32_t>{5, 7, 9, id_of(kTurn)}));
    EXPECT_TRUE(rules.ends_output(5) && rules.is_eos(5));
    EXPECT_TRUE(rules.ends_output(9) && !rules.is_eos(9));
    options.ignore_eos = true;
    EXPECT_FALSE(OutputRules::make(options, tiny_tokenizer(), kVocabulary)->ends_output(7));
}

}  // namespace
}  // namespace espalier::accept
