// SPDX-License-Identifier: Apache-2.0
// Thousands of random outputs, walked down random trees step by step, against the same outputs
// drawn one token at a time (one_token.hpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "accept/one_token.hpp"
#include "accept/tiny_tokenizer.hpp"
#include "accept/walk.hpp"
#include "base/random.hpp"

namespace espalier::accept {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Case {
    OutputOptions options;
    Tokens prompt;
    Tokens palette;  // what this case's model draws
    std::uint64_t seed = 0;
    double failures = 0;  // chance that a draw is flagged
};

// Text that this case's tokens can make, so that it is often found; begun, continued or shared by
// other stop strings.
std::string random_stop(Random& random, const Tokens& palette,
                        const std::vector<std::string>& others) {
    Tokens tokens;
    for (int i = random.between(1, 4); i > 0; --i)
        tokens.push_back(palette[random.bits() % palette.size()]);
    const std::string text = tiny_tokenizer().decode(tokens, random.chance(0.9));
    if (text.empty()) return "a";
    if (others.empty() || random.chance(0.5)) return text;
    const std::string& other = others[random.bits() % others.size()];
    return random.chance(0.5) ? text + other : other + text;
}

Case random_case(std::uint64_t seed) {
    Random random(seed);
    Case one;
    one.seed = random.bits();
    OutputOptions& options = one.options;
    options.max_tokens = random.between(1, 40);
    if (random.chance(0.5))
        options.min_tokens = random.between(0, static_cast<int>(options.max_tokens));
    options.eos_token_ids = {id_of(kEos)};
    options.ignore_eos = random.chance(0.2);
    if (random.chance(0.3)) options.stop_token_ids = {id_of("c")};
    if (random.chance(0.2)) options.stop_token_ids.push_back(id_of(kTurn));
    const Tokens& all = tiny_palette();
    for (int i = random.between(3, 9); i > 0; --i)
        one.palette.push_back(all[random.bits() % all.size()]);
    if (random.chance(0.7))
        for (int i = random.between(1, 4); i > 0; --i)
            options.stop.push_back(random_stop(random, one.palette, options.stop));
    options.include_stop = random.chance(0.3);
    options.skip_special_tokens = random.chance(0.7);
    options.top_logprobs = random.between(0, 3);
    options.count_tokens = random.chance(0.5);
    for (int i = random.between(1, 9); i > 0; --i)
        one.prompt.push_back(all[random.bits() % all.size()]);
    one.failures = random.chance(0.2) ? 0.05 : 0.0;
    return one;
}

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
    return Random(state ^ (value + 1) * 0x9e3779b97f4a7c15ull).bits();
}

// A model without logits: a draw is a hash of everything it may depend on.
PlainDraw draw_of(const Case& one, std::span<const std::int32_t> output,
                  std::span<const std::int32_t> banned, const PlainCounts& counts) {
    std::uint64_t state = mix(one.seed, output.size());
    if (!output.empty()) state = mix(state, static_cast<std::uint64_t>(output.back()));
    if (one.options.count_tokens)
        for (const auto& [token, count] : counts)
            state = mix(mix(state, static_cast<std::uint64_t>(token)),
                        static_cast<std::uint64_t>(2 * count.in_output + count.in_prompt));
    Random random(state);
    PlainDraw drawn;
    if (random.chance(one.failures)) {
        drawn.draw.flag =
            random.chance(0.5) ? ops::DrawFlag::bad_logits : ops::DrawFlag::nothing_left;
    } else {
        Tokens allowed;
        for (const std::int32_t token : one.palette)
            if (std::find(banned.begin(), banned.end(), token) == banned.end())
                allowed.push_back(token);
        if (allowed.empty())
            drawn.draw.flag = ops::DrawFlag::nothing_left;
        else
            drawn.draw.token = allowed[random.bits() % allowed.size()];
    }
    drawn.draw.logprob = -static_cast<float>(random.between(0, 1000)) / 64.0f;
    for (int i = 0; i < one.options.top_logprobs; ++i)
        drawn.top.push_back({random.between(0, 300), -static_cast<float>(i)});
    return drawn;
}

struct Tree {
    Tokens parents{-1}, tokens{-1};
    std::vector<Tokens> paths{{}};  // tokens from depth 1 on
    TreeView view() const { return {parents, tokens}; }
    bool add(std::size_t parent, std::int32_t token) {
        if (view().child_with(static_cast<std::int32_t>(parent), token) >= 0) return false;
        parents.push_back(static_cast<std::int32_t>(parent));
        tokens.push_back(token);
        paths.push_back(paths[parent]);
        paths.back().push_back(token);
        return true;
    }
};

// Sometimes right: half of the nodes grow where the truth is, and often say it, often as a later
// child. `truth` are the tokens that will be committed from here on.
Tree random_tree(Random& random, std::span<const std::int32_t> truth, const Tokens& palette) {
    Tree tree;
    std::size_t true_node = 0;
    for (int tries = random.chance(0.1) ? 200 : random.between(0, 24);
         tries > 0 && tree.parents.size() < 64; --tries) {
        const std::size_t parent =
            random.chance(0.5) ? true_node : random.bits() % tree.parents.size();
        const std::size_t depth = tree.paths[parent].size();
        const bool right = parent == true_node && depth < truth.size() && random.chance(0.5);
        const std::int32_t token = right ? truth[depth] : palette[random.bits() % palette.size()];
        if (!tree.add(parent, token)) continue;
        if (parent == true_node && depth < truth.size() && token == truth[depth])
            true_node = tree.parents.size() - 1;
    }
    return tree;
}

PlainCounts plain_counts(const NodeCounts& counts) {
    PlainCounts plain;
    for (const TokenCount& entry : counts.committed)
        plain[entry.token] = {entry.in_output, entry.in_prompt};
    for (const TokenCount& entry : counts.changed())
        plain[entry.token] = {entry.in_output, entry.in_prompt};
    return plain;
}

struct Seen {
    int later_branch = 0;    // accepted a child that is not its parent's first
    int unvisited_flag = 0;  // flags that must not matter
    int failed_inside = 0;   // on a draft
    // Ended where the tree knew how it would have gone on, by reason:
    std::map<FinishReason, int> inside_run;
    std::map<FinishReason, int> reasons;
    int stop_across_tokens = 0;
    int stop_across_code_point = 0;  // completed by a token that begins inside a code point
    int stop_begins_another = 0;
    int stop_too_early = 0;  // found in the first min_tokens, and no end
};

// One case, walked. Owns what a step's views point to.
class Walked {
  public:
    Walked(const Case& one, std::uint64_t seed, Seen& seen)
        : case_(one),
          random_(seed ^ 0x5eed),
          seen_(seen),
          truth_(run_one_token_at_a_time(one.options, one.prompt,
                                         [&](auto output, auto banned, const auto& counts) {
                                             return draw_of(one, output, banned, counts);
                                         })),
          progress_(OutputRules::make(one.options, tiny_tokenizer(), 1000).value(),
                    tiny_tokenizer(), one.prompt) {
        usage_.prompt_tokens = static_cast<std::int64_t>(one.prompt.size());
    }

    void run() {
        while (!progress_.finish()) {
            ASSERT_LT(drawn_, truth_.steps.size());
            step();
            if (::testing::Test::HasFatalFailure()) return;
        }
        EXPECT_EQ(*progress_.finish(), truth_.finish);
        EXPECT_EQ(drawn_, truth_.steps.size());
        EXPECT_EQ(committed_, truth_.tokens);
        EXPECT_EQ(text_, truth_.text);
        note_end();
    }

  private:
    // Will the walk come by? The truth knows.
    bool visited(const Tokens& path) const {
        return drawn_ + path.size() < truth_.steps.size() &&
               std::equal(path.begin(), path.end(),
                          truth_.tokens.begin() + static_cast<std::ptrdiff_t>(drawn_));
    }

    // Tokens that the sampler would give at each node; garbage where the walk does not pass.
    void sample(const Tree& tree) {
        draws_.clear();
        top_.clear();
        flagged_ = 0;
        for (std::size_t node = 0; node < tree.paths.size(); ++node) {
            const Tokens& path = tree.paths[node];
            Tokens output = committed_;
            output.insert(output.end(), path.begin(), path.end());
            PlainCounts counts;
            if (case_.options.count_tokens) counts = plain_counts(progress_.counts_at(path));
            PlainDraw drawn = draw_of(
                case_, output, progress_.banned_at(static_cast<std::int32_t>(path.size())), counts);
            if (!visited(path)) {
                if (random_.chance(0.3)) drawn.draw = {-1, 0.0f, ops::DrawFlag::bad_logits};
                if (random_.chance(0.3))
                    drawn.draw.logprob = std::numeric_limits<float>::quiet_NaN();
                if (random_.chance(0.3)) flagged_ |= std::uint64_t{1} << node;
                seen_.unvisited_flag += drawn.draw.flag != ops::DrawFlag::fine;
            } else if (drawn.draw.flag == ops::DrawFlag::bad_logits && random_.chance(0.5)) {
                // The same failure, found when the node's latent was written.
                flagged_ |= std::uint64_t{1} << node;
                drawn.draw = {case_.palette[0], -1.0f, ops::DrawFlag::fine};
            }
            draws_.push_back(drawn.draw);
            top_.insert(top_.end(), drawn.top.begin(), drawn.top.end());
        }
    }

    void step() {
        const auto rest = std::span<const std::int32_t>(truth_.tokens).subspan(drawn_);
        const Tree tree = random_tree(random_, rest, case_.palette);
        ASSERT_EQ(progress_.draw_position(0),
                  static_cast<std::int64_t>(case_.prompt.size() + committed_.size()));
        sample(tree);
        Tokens expected_path;
        for (std::size_t node = 0; node < tree.paths.size(); ++node) {
            const NodeList path = path_tokens(tree.view(), static_cast<std::int32_t>(node));
            ASSERT_TRUE(std::ranges::equal(path.values(), tree.paths[node]));
            if (!visited(tree.paths[node])) continue;
            expected_path.push_back(static_cast<std::int32_t>(node));
            if (node > 0) ++usage_.accepted_at_depth[tree.paths[node].size()];
        }
        emission_.clear();
        const WalkResult result = walk(tree.view(), {draws_, top_, flagged_}, progress_, emission_);
        ASSERT_TRUE(std::ranges::equal(result.path.values(), expected_path));
        compare(tree, result);
    }

    void compare(const Tree& tree, const WalkResult& result) {
        const std::size_t visits = result.path.values().size();
        PlainStep expected;
        for (std::size_t i = drawn_; i < drawn_ + visits; ++i) {
            const PlainStep& one = truth_.steps[i];
            expected.text += one.text;
            expected.tokens.insert(expected.tokens.end(), one.tokens.begin(), one.tokens.end());
            expected.top.insert(expected.top.end(), one.top.begin(), one.top.end());
        }
        ASSERT_EQ(emission_.text, expected.text);
        ASSERT_EQ(emission_.tokens, expected.tokens);
        ASSERT_EQ(emission_.top, expected.top);
        drawn_ += visits;
        text_ += emission_.text;
        const auto tokens = result.tokens.values();
        committed_.insert(committed_.end(), tokens.begin(), tokens.end());
        ASSERT_EQ(result.finish, progress_.finish());
        ++usage_.steps;
        usage_.drafted += tree.view().nodes() - 1;
        usage_.accepted += static_cast<std::int64_t>(visits) - 1;
        usage_.completion_tokens = static_cast<std::int64_t>(committed_.size());
        ASSERT_EQ(progress_.usage(), usage_);
        ASSERT_EQ(progress_.tokens_left(),
                  case_.options.max_tokens - static_cast<std::int64_t>(committed_.size()));
        note_step(tree, result);
    }

    void note_step(const Tree& tree, const WalkResult& result) {
        const auto path = result.path.values();
        for (std::size_t i = 1; i < path.size(); ++i) {
            const auto first = std::find(tree.parents.begin() + 1, tree.parents.end(), path[i - 1]);
            seen_.later_branch += first - tree.parents.begin() < path[i];
        }
        if (!result.finish || path.size() < 2) return;
        if (result.tokens.values().size() < path.size())
            ++seen_.failed_inside;
        else if (tree.view().child_with(path.back(), committed_.back()) >= 0)
            ++seen_.inside_run[result.finish->reason];
    }

    void note_end() {
        const OutputOptions& options = case_.options;
        ++seen_.reasons[truth_.finish.reason];
        const auto first =
            std::min(static_cast<std::size_t>(options.min_tokens), committed_.size());
        const std::string early = tiny_tokenizer().decode(std::span(committed_).first(first),
                                                          options.skip_special_tokens);
        seen_.stop_too_early += std::ranges::any_of(options.stop, [&](const std::string& stop) {
            return early.find(stop) != std::string::npos;
        });
        if (truth_.finish.reason != FinishReason::stop_string) return;
        const std::string& stop = options.stop[static_cast<std::size_t>(truth_.finish.which)];
        const auto end =
            static_cast<std::int64_t>(text_.size() + (options.include_stop ? 0 : stop.size()));
        const CommittedToken& last = truth_.steps.back().tokens.back();
        seen_.stop_across_tokens += last.text_offset > end - static_cast<std::int64_t>(stop.size());
        const std::string_view bytes = tiny_tokenizer().token_bytes(last.token);
        seen_.stop_across_code_point += (static_cast<unsigned char>(bytes[0]) & 0xC0) == 0x80 &&
                                        !stop.ends_with("\xEF\xBF\xBD");
        seen_.stop_begins_another +=
            std::ranges::any_of(options.stop, [&](const std::string& other) {
                return other.size() > stop.size() && other.starts_with(stop);
            });
    }

    const Case& case_;
    Random random_;
    Seen& seen_;
    PlainOutput truth_;
    RequestProgress progress_;
    Emission emission_;
    std::vector<ops::Draw> draws_;
    std::vector<TokenLogprob> top_;
    std::uint64_t flagged_ = 0;
    std::size_t drawn_ = 0;
    Tokens committed_;
    std::string text_;
    Usage usage_;
};

TEST(Walk, EqualsOneTokenAtATime) {
    Seen seen;
    for (std::uint64_t seed = 0; seed < 20000; ++seed) {
        const Case one = random_case(seed);
        Walked(one, seed, seen).run();
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
    // The cases are what they are meant to be.
    EXPECT_GT(seen.later_branch, 5000);
    EXPECT_GT(seen.unvisited_flag, 5000);
    EXPECT_GT(seen.failed_inside, 200);
    EXPECT_GT(seen.stop_across_tokens, 1000);
    EXPECT_GT(seen.stop_across_code_point, 200);
    EXPECT_GT(seen.stop_begins_another, 1000);
    EXPECT_GT(seen.stop_too_early, 1000);
    using enum FinishReason;
    for (const FinishReason reason : {eos, stop_token, stop_string, length}) {
        EXPECT_GT(seen.reasons[reason], 1000) << static_cast<int>(reason);
        EXPECT_GT(seen.inside_run[reason], 200) << static_cast<int>(reason);
    }
    EXPECT_GT(seen.reasons[bad_numbers], 200);
    EXPECT_GT(seen.reasons[nothing_left], 200);
}

}  // namespace
}  // namespace espalier::accept
