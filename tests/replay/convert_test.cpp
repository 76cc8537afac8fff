// SPDX-License-Identifier: Apache-2.0
// Every field of what a trace holds of a request, and of an engine's settings, comes through the
// engine's words and back, whatever the others are.
#include "replay/convert.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tiny_target.hpp"

namespace espalier::replay {
namespace {

// Visits fields() and gives the which-th value, in structs inside of it too, another one.
class FieldChanger {
  public:
    explicit FieldChanger(std::size_t which) : which_(which) {}
    const std::string& changed() const { return changed_; }

    template <typename T>
    void integer(std::string_view name, T& value, std::int64_t lo, std::int64_t hi) {
        if (here(name)) value = static_cast<T>(value < hi ? value + 1 : lo);
    }
    template <typename T>
    void maybe_integer(std::string_view name, std::optional<T>& value, std::int64_t lo,
                       std::int64_t) {
        const bool present = value.has_value();
        if (here(name)) value = static_cast<T>(present ? *value + 1 : lo);
        if (present && here(name)) value.reset();
    }
    void maybe_count(std::string_view name, std::int64_t& value, std::int64_t) {
        if (here(name)) ++value;
    }
    void word64(std::string_view name, std::uint64_t& value) {
        if (here(name)) ++value;
    }
    void real(std::string_view name, float& value) {
        if (here(name)) value += 0.25f;
    }
    void flag(std::string_view name, bool& value) {
        if (here(name)) value = !value;
    }
    void maybe_flag(std::string_view name, bool& value) { flag(name, value); }
    void text(std::string_view name, std::string& value, std::int64_t = 0) {
        if (here(name)) value = value == "regex" ? "ebnf" : "regex";  // kinds of grammars
    }
    void maybe_text(std::string_view name, std::optional<std::string>& value) {
        if (here(name)) value = value ? *value + "x" : "named";
    }
    void texts(std::string_view name, std::vector<std::string>& values, std::int64_t,
               std::int64_t = 0) {
        if (here(name)) values.emplace_back("more");
    }
    template <typename Enum, std::size_t count>
    void choice(std::string_view name, Enum& value, const std::array<std::string_view, count>&) {
        if (here(name)) value = static_cast<Enum>((static_cast<std::size_t>(value) + 1) % count);
    }
    void integers(std::string_view name, std::vector<std::int32_t>& values, std::int64_t,
                  std::int64_t, std::int64_t) {
        if (here(name)) values.push_back(7);
    }
    template <typename T>
    void object(std::string_view, T& value) {
        T::fields(*this, value);
    }
    template <typename T>
    void maybe_object(std::string_view name, std::optional<T>& value) {
        if (value) object(name, *value);
        if (!here(name)) return;
        if (value)
            value.reset();
        else
            value.emplace();
    }
    template <typename T>
    void objects(std::string_view name, std::vector<T>& values, std::int64_t) {
        for (T& value : values) object(name, value);
        if (here(name)) values.emplace_back();
    }

  private:
    bool here(std::string_view name) {
        if (visited_++ != which_) return false;
        changed_ = name;
        return true;
    }
    std::size_t which_, visited_ = 0;
    std::string changed_;
};

// expect_back(changed) for each value with another field; returns how many there are.
template <typename T, typename Expectation>
int change_each_field(const T& value, const Expectation& expect_back) {
    for (int which = 0;; ++which) {
        T changed = value;
        FieldChanger changer(static_cast<std::size_t>(which));
        T::fields(changer, changed);
        if (changer.changed().empty()) return which;
        SCOPED_TRACE(changer.changed());
        expect_back(changed);
    }
}

TEST(Convert, EveryFieldOfSettingsComesBack) {
    trace::Settings settings;
    settings.max_step_splits = 3;
    settings.drafters = {"ngram"};
    const int fields = change_each_field(settings, [&](const trace::Settings& changed) {
        EXPECT_FALSE(changed == settings);
        EXPECT_EQ(settings_of(stepper_settings_of(changed), changed.drafters), changed);
    });
    EXPECT_EQ(fields, 17);
}

TEST(Convert, EveryFieldOfARequestComesBack) {
    constexpr std::int64_t kVocabulary = 64;
    const text::Tokenizer& tokenizer = *engine::tiny_target(engine::Family::v3).tokenizer;
    trace::Submission submission;
    submission.prompt = {5, 6};
    submission.deadline = 900;
    submission.draft_depth = submission.draft_width = submission.draft_nodes = 2;
    submission.sampling.logit_bias = {{3, 0.5f}};
    submission.output.eos_token_ids = {1};
    submission.output.max_tokens = 9;
    submission.output.prompt_top_logprobs = 2;
    submission.reasoning = accept::ReasoningRule{.end_token_ids = {4}, .budget = 100};
    const auto expect_back = [&](const trace::Submission& changed) {
        engine::Request request = request_of(changed);
        auto sampling = accept::SamplingParameters::make({}, kVocabulary);
        auto rules = accept::OutputRules::make(request.output, tokenizer, kVocabulary);
        ASSERT_TRUE(sampling && rules);
        const engine::CheckedRequest checked{std::move(request), std::move(*sampling),
                                             std::move(*rules)};
        EXPECT_EQ(submission_of(checked, changed.request, changed.time), changed);
    };
    expect_back(submission);
    const int fields = change_each_field(submission, [&](const trace::Submission& changed) {
        if (changed.grammar != submission.grammar) return;
        EXPECT_FALSE(changed == submission);
        expect_back(changed);
    });
    EXPECT_GT(fields, 35);
}

TEST(Convert, EveryFieldOfAGrammarComesBack) {
    const trace::Grammar grammar{
        .kind = "json_schema", .text = "{}", .choices = {"a"}, .strict = true};
    const int fields = change_each_field(grammar, [&](const trace::Grammar& changed) {
        EXPECT_FALSE(changed == grammar);
        const auto specification = specification_of(changed);
        ASSERT_TRUE(specification) << specification.error().message;
        EXPECT_EQ(grammar_of(*specification), changed);
    });
    EXPECT_EQ(fields, 5);
    EXPECT_FALSE(specification_of({.kind = "prose", .text = {}, .choices = {}}));
}

}  // namespace
}  // namespace espalier::replay
