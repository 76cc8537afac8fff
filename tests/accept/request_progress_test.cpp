// SPDX-License-Identifier: Apache-2.0
// Single outputs written out: what a streaming client sees token by token.
#include "accept/request_progress.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "accept/tiny_tokenizer.hpp"

namespace espalier::accept {
namespace {

// Deltas joined by '|', so that tests read as a stream does.
struct Stream {
    explicit Stream(OutputOptions options)
        : progress(OutputRules::make(std::move(options), tiny_tokenizer(), 1000).value(),
                   tiny_tokenizer(), std::array{id_of("a")}) {}
    std::optional<Finish> push(std::string_view token) {
        Emission out;
        const auto finish = progress.commit({id_of(token), -1.0f, ops::DrawFlag::fine}, {}, out);
        note(out);
        return finish;
    }
    void note(const Emission& out) {
        deltas += out.text + "|";
        tokens.push_back(out.tokens.size());
        offsets.insert(offsets.end(), out.tokens.begin(), out.tokens.end());
    }
    RequestProgress progress;
    std::string deltas;
    std::vector<std::size_t> tokens;
    std::vector<CommittedToken> offsets;
};

OutputOptions with_stops(std::vector<std::string> stop) {
    OutputOptions options;
    options.max_tokens = 100;
    options.eos_token_ids = {id_of(kEos)};
    options.stop = std::move(stop);
    return options;
}

TEST(RequestProgress, NeverShowsTheBeginningOfAStopString) {
    Stream stream(with_stops({"abc\n"}));
    EXPECT_FALSE(stream.push("c"));
    EXPECT_FALSE(stream.push("a"));
    EXPECT_FALSE(stream.push("b"));
    EXPECT_FALSE(stream.push("a"));  // "ab" was not one after all, "a" may be
    EXPECT_FALSE(stream.push("bc"));
    EXPECT_EQ(stream.push("\n"), (Finish{FinishReason::stop_string, 0}));
    EXPECT_EQ(stream.deltas, "c|||ab|||");
    EXPECT_EQ(stream.tokens, (std::vector<std::size_t>{1, 0, 0, 2, 0, 3}));
    EXPECT_EQ(stream.offsets.back().text_offset, 6);
    EXPECT_EQ(stream.progress.usage().completion_tokens, 6);
}

TEST(RequestProgress, TheStringThatIsCompleteFirstStops) {
    Stream prefix(with_stops({"abc", "ab"}));
    EXPECT_EQ(prefix.push("abc"), (Finish{FinishReason::stop_string, 1}));
    EXPECT_EQ(prefix.deltas, "|");
    Stream inner(with_stops({"aabc\n", "b"}));
    EXPECT_FALSE(inner.push("a"));
    EXPECT_EQ(inner.push("abc"), (Finish{FinishReason::stop_string, 1}));
    EXPECT_EQ(inner.deltas, "|aa|");
    Stream suffix(with_stops({"c", "bc"}));
    EXPECT_EQ(suffix.push("abc"), (Finish{FinishReason::stop_string, 1}));
    EXPECT_EQ(suffix.deltas, "a|");
}

TEST(RequestProgress, IncludeStopKeepsTheStopAndNothingBeyond) {
    OutputOptions options = with_stops({"b"});
    options.include_stop = true;
    Stream string(options);
    EXPECT_EQ(string.push("abc"), (Finish{FinishReason::stop_string, 0}));
    EXPECT_EQ(string.deltas, "ab|");
    options.stop = {};
    options.stop_token_ids = {id_of("abc"), id_of(kTurn)};
    Stream token(options);
    EXPECT_EQ(token.push("abc"), (Finish{FinishReason::stop_token, id_of("abc")}));
    EXPECT_EQ(token.deltas, "abc|");
    options.skip_special_tokens = false;
    Stream special(options);
    EXPECT_TRUE(special.push(kTurn));
    EXPECT_EQ(special.deltas, "<|turn|>|");
}

TEST(RequestProgress, ReleasesWhatItHeldAtTheEnd) {
    Stream stream(with_stops({"abc"}));
    EXPECT_FALSE(stream.push("ab"));
    EXPECT_FALSE(stream.push("\xe4"));  // unfinished: could still be anything
    EXPECT_EQ(stream.push(kEos), (Finish{FinishReason::eos, id_of(kEos)}));
    EXPECT_EQ(stream.deltas, "||ab\xEF\xBF\xBD|");
    EXPECT_EQ(stream.progress.usage().completion_tokens, 3);
}

TEST(RequestProgress, FindsStopStringsAcrossHalvesOfCodePoints) {
    Stream stream(with_stops({"你b"}));
    EXPECT_FALSE(stream.push("b\xe4"));
    EXPECT_FALSE(stream.push("\xbd\xa0"));
    EXPECT_EQ(stream.push("bc"), (Finish{FinishReason::stop_string, 0}));
    EXPECT_EQ(stream.deltas, "b|||");
}

TEST(RequestProgress, MinTokensBansAndPostpones) {
    OutputOptions options = with_stops({"a", "bb"});
    options.min_tokens = 2;
    Stream stream(options);
    EXPECT_EQ(stream.progress.banned_at(0).size(), 1u);
    EXPECT_EQ(stream.progress.banned_at(1).size(), 1u);
    EXPECT_TRUE(stream.progress.banned_at(2).empty());
    EXPECT_THROW(stream.push(kEos), std::logic_error);
    EXPECT_FALSE(stream.push("a"));
    EXPECT_EQ(stream.progress.banned_at(0).size(), 1u);
    EXPECT_TRUE(stream.progress.banned_at(1).empty());
    EXPECT_FALSE(stream.push("b"));
    // Begun before, completed after: it counts.
    EXPECT_EQ(stream.push("b"), (Finish{FinishReason::stop_string, 1}));
    EXPECT_EQ(stream.deltas, "a|||");
}

TEST(RequestProgress, EndsWhereItStandsWhenInterrupted) {
    Stream stream(with_stops({"abc"}));
    EXPECT_FALSE(stream.push("ab"));
    Emission out;
    EXPECT_EQ(stream.progress.end(FinishReason::interrupted, out).reason,
              FinishReason::interrupted);
    EXPECT_EQ(out.text, "ab");
    EXPECT_EQ(out.tokens.size(), 1u);
    EXPECT_THROW(stream.push("a"), std::logic_error);
    EXPECT_THROW(stream.progress.end(FinishReason::interrupted, out), std::logic_error);
}

}  // namespace
}  // namespace espalier::accept
