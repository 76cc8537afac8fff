// SPDX-License-Identifier: Apache-2.0
// A trace of a random workload runs again, token by token; a trace that says anything else than
// what happens is refused, with the line, the step, the request and both values.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/harness.hpp"
#include "replay/recorder.hpp"
#include "replay/replayer.hpp"
#include "replay/traced_run.hpp"
#include "trace/samples.hpp"

namespace espalier::replay {
namespace {

#if defined(ESPALIER_SANITIZED)
constexpr std::uint64_t kWorkloads = 10;
#else
constexpr std::uint64_t kWorkloads = 60;
#endif

Expected<Replayed> replay_text(const std::string& text, engine::Family family) {
    ESPALIER_ASSIGN_OR_RETURN(trace::Reader reader, trace::read_text(text));
    engine::TinyTarget& tiny = engine::tiny_target(family);
    return replay(reader, engine::target_maker(tiny), *tiny.tokenizer);
}

struct Seen {
    std::int64_t steps = 0, tokens = 0, trees = 0, cut_trees = 0, accepted = 0, moved = 0;
    std::int64_t cancellations = 0, expired = 0, failed = 0, preemptions = 0, choices = 0;
};

void count(const std::string& text, Seen& seen) {
    const auto events = trace::events_of(text);
    for (const trace::Event& event : *events) {
        if (const auto* submission = std::get_if<trace::Submission>(&event))
            seen.choices += submission->choices - 1;
        if (std::holds_alternative<trace::Cancellation>(event)) ++seen.cancellations;
        const auto* step = std::get_if<trace::Step>(&event);
        if (step == nullptr) continue;
        ++seen.steps;
        seen.trees += std::ssize(step->trees);
        for (const trace::Tree& tree : step->trees)
            for (const trace::Row& row : step->rows)
                seen.cut_trees +=
                    row.request == tree.request && row.nodes < std::ssize(tree.tokens) ? 1 : 0;
        for (const trace::Outcome& outcome : step->outcomes) {
            seen.accepted += std::ssize(outcome.path) - 1;
            for (std::size_t i = 0; i < outcome.path.size(); ++i)
                seen.moved += outcome.path[i] != static_cast<std::int32_t>(i) ? 1 : 0;
        }
        for (const trace::Ended& ended : step->ended) {
            seen.expired += ended.reason == trace::Reason::deadline ? 1 : 0;
            seen.failed += ended.reason == trace::Reason::bad_numbers ? 1 : 0;
        }
    }
}

TEST(Replay, RandomWorkloadsRunAgainTokenByToken) {
    Seen seen;
    for (std::uint64_t seed = 1; seed <= kWorkloads; ++seed) {
        const TracedRun traced = run_traced(seed);
        const auto again = replay_text(traced.text, traced.family);
        ASSERT_TRUE(again) << "workload " << seed << ": " << again.error().message;
        EXPECT_EQ(again->tokens, traced.tokens) << "workload " << seed;
        EXPECT_EQ(again->unfinished, 0);
        EXPECT_EQ(again->ending, trace::Ending::finished);
        count(traced.text, seen);
        seen.tokens += again->tokens;
        seen.preemptions += traced.preemptions;
    }
    if (kWorkloads < 60) return;
    EXPECT_GT(seen.tokens, 1000);
    const std::pair<const char*, std::int64_t> needed[] = {
        {"trees", seen.trees},
        {"trees cut to the pages there were", seen.cut_trees},
        {"accepted drafts", seen.accepted},
        {"moved rows", seen.moved},
        {"cancellations", seen.cancellations},
        {"deadlines", seen.expired},
        {"failures", seen.failed},
        {"preemptions", seen.preemptions},
        {"parallel choices", seen.choices}};
    for (const auto& [what, number] : needed) EXPECT_GT(number, 0) << what;
    RecordProperty("steps", static_cast<int>(seen.steps));
    RecordProperty("tokens", static_cast<int>(seen.tokens));
}

#if defined(ESPALIER_WITH_GRAMMAR)
// The specification is in the trace; the grammar is compiled anew, and holds the same trees.
TEST(Replay, GrammarsAndReasoningRunAgainTokenByToken) {
    Seen seen;
    std::int64_t grammars = 0, reasoning = 0;
    for (std::uint64_t seed = 1; seed <= kWorkloads / 3; ++seed) {
        const engine::Family family = seed % 2 == 0 ? engine::Family::v2 : engine::Family::v3;
        const TracedRun traced = run_traced(
            lossless::grammar_workload(seed, engine::tiny_target(family).target()), family);
        const auto again = replay_text(traced.text, traced.family);
        ASSERT_TRUE(again) << "workload " << seed << ": " << again.error().message;
        EXPECT_EQ(again->tokens, traced.tokens) << "workload " << seed;
        count(traced.text, seen);
        const auto events = trace::events_of(traced.text);
        for (const trace::Event& event : *events)
            if (const auto* submission = std::get_if<trace::Submission>(&event)) {
                grammars += submission->grammar ? 1 : 0;
                reasoning += submission->reasoning ? 1 : 0;
            }
    }
    EXPECT_GT(grammars, 0);
    EXPECT_GT(reasoning, 0);
    EXPECT_GT(seen.accepted, 0);
}
#endif

TEST(Replay, AGrammarOfAnUnknownKindIsRefused) {
    lossless::Workload work;
    work.random_drafter = false;
    work.settings = engine::roomy_settings();
    work.requests.resize(1);
    work.requests[0].request = engine::plain_request(20, 4, 7);
    const TracedRun traced = run_traced(work, engine::Family::v2);
    std::vector<std::string> lines = trace::lines_of(traced.text);
    auto submission = nlohmann::ordered_json::parse(lines[1]);
    submission["grammar"] = {{"kind", "prose"},
                             {"text", ""},
                             {"choices", nlohmann::ordered_json::array()},
                             {"strict", true},
                             {"any_whitespace", true}};
    lines[1] = submission.dump();
    const auto again = replay_text(trace::joined(lines), traced.family);
    ASSERT_FALSE(again);
    EXPECT_NE(again.error().message.find("'prose' is no kind of grammar"), std::string::npos)
        << again.error().message;
}

// Deadlines are looked at twice in a step, when it begins and when it has committed: the clock of
// these runs ticks on with every look at it, so a deadline falls between the two in most of them.
TEST(Replay, DeadlinesPassWhereTheyPassed) {
    lossless::Workload work;
    work.random_drafter = false;
    work.settings = engine::roomy_settings();
    work.requests.resize(1);
    work.requests[0].request = engine::plain_request(20, 40, 7);
    std::int64_t within = 0;
    for (std::int64_t deadline = 1000; deadline <= 60'000; deadline += 1000) {
        work.requests[0].request.deadline = deadline;
        const TracedRun traced = run_traced(work, engine::Family::v2);
        const auto again = replay_text(traced.text, traced.family);
        ASSERT_TRUE(again) << "deadline " << deadline << ": " << again.error().message;
        const auto events = trace::events_of(traced.text);
        const auto& last = std::get<trace::Step>(events->back());
        ASSERT_EQ(last.ended.size(), 1u);
        EXPECT_EQ(last.ended[0].reason, trace::Reason::deadline);
        within += last.begin < deadline ? 1 : 0;
    }
    EXPECT_GT(within, 20);
}

// A trace whose steps have trees and accepted drafts: what the refusals are tried on.
class ReplayRefusal : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        for (std::uint64_t seed = 1; text_.empty(); ++seed) {
            const TracedRun traced = run_traced(seed);
            Seen seen;
            count(traced.text, seen);
            if (seen.moved == 0 || seen.cancellations == 0) continue;
            text_ = traced.text;
            family_ = traced.family;
        }
    }
    // The first line that `suits` is changed, and what replay says to that.
    template <typename Change>
    std::string refusal(const char* kind, Change change) {
        std::vector<std::string> lines = trace::lines_of(text_);
        for (std::size_t i = 0; i < lines.size(); ++i) {
            auto object = nlohmann::ordered_json::parse(lines[i]);
            if (object["kind"] != kind || !change(object)) continue;
            lines[i] = object.dump();
            line_ = i + 1;
            return refusal_of(trace::joined(lines));
        }
        ADD_FAILURE() << "no " << kind << " suits";
        return {};
    }
    static std::string refusal_of(const std::string& text) {
        const auto again = replay_text(text, family_);
        EXPECT_FALSE(again);
        return again ? "" : again.error().message;
    }
    void expect_says(const std::string& message, const std::string& part) const {
        EXPECT_NE(message.find(fmt::format("run.jsonl, line {}", line_)), std::string::npos)
            << message;
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }

    using Json = nlohmann::ordered_json;
    static inline std::string text_;
    static inline engine::Family family_ = engine::Family::v2;
    std::size_t line_ = 0;
};

TEST_F(ReplayRefusal, ADrawnToken) {
    int was = 0, request = 0, step = 0;
    const std::string message = refusal("step", [&](Json& line) {
        if (line["outcomes"].empty()) return false;
        Json& drawn = line["outcomes"][0]["drawn"][0];
        was = drawn;
        request = line["outcomes"][0]["request"];
        step = line["number"];
        drawn = was + 1;
        return true;
    });
    expect_says(message,
                fmt::format("step {}: outcomes[0].drawn[0] (request {}): the trace has {}, this "
                            "run {}",
                            step, request, was + 1, was));
}

TEST_F(ReplayRefusal, AnAcceptedPath) {
    const std::string message = refusal("step", [](Json& line) {
        for (Json& outcome : line["outcomes"])
            if (outcome["path"].size() > 1) {
                outcome["path"].erase(1);
                return true;
            }
        return false;
    });
    expect_says(message, "path");
}

TEST_F(ReplayRefusal, APlan) {
    expect_says(refusal("step",
                        [](Json& line) {
                            if (line["rows"].empty()) return false;
                            line["rows"][0]["q_len"] = line["rows"][0]["q_len"].get<int>() + 1;
                            return true;
                        }),
                "rows[0].q_len (request ");
    expect_says(refusal("step",
                        [](Json& line) {
                            if (line["rows"].empty()) return false;
                            line["rows"].erase(0);
                            return true;
                        }),
                "rows");
    expect_says(refusal("step",
                        [](Json& line) {
                            line["pages"]["free"] = 7777;
                            return true;
                        }),
                "pages.free: the trace has 7777, this run ");
    expect_says(refusal("step",
                        [](Json& line) {
                            line["number"] = 4;
                            return true;
                        }),
                "number: the trace has 4, this run 1");
}

TEST_F(ReplayRefusal, ATree) {
    const auto change = [this](auto how) {
        return refusal("step", [how](Json& line) {
            if (line["trees"].empty()) return false;
            how(line["trees"][0]);
            return true;
        });
    };
    expect_says(change([](Json& tree) { tree["tokens"][1] = 100000; }), "the tree of request ");
    expect_says(change([](Json& tree) { tree["parents"][1] = 1; }), "the tree of request ");
    expect_says(change([](Json& tree) { tree["request"] = 4000; }),
                "request 4000 has a tree, but is not there in this run");
    // A root that is not the request's last token, and more nodes than there is room for: neither
    // can be verified, so the plan differs.
    expect_says(
        change([](Json& tree) { tree["tokens"][0] = (tree["tokens"][0].get<int>() + 1) % 500; }),
        "this run");
    expect_says(change([](Json& tree) {
                    while (tree["tokens"].size() < 64) {
                        tree["tokens"].push_back(3);
                        tree["parents"].push_back(tree["tokens"].size() - 2);
                    }
                }),
                "this run");
    expect_says(refusal("step",
                        [](Json& line) {
                            if (line["trees"].empty()) return false;
                            line["trees"].push_back(line["trees"][0]);
                            return true;
                        }),
                "has two trees");
}

TEST_F(ReplayRefusal, ASubmission) {
    const auto change = [this](auto how) {
        return refusal("submit", [how](Json& line) {
            how(line);
            return true;
        });
    };
    expect_says(change([](Json& line) { line["request"] = 9; }),
                "request 9: request (request 9): the trace has 9, this run 0");
    expect_says(change([](Json& line) { line["prompt"] = Json::array(); }),
                "prompt: has no tokens");
    expect_says(change([](Json& line) { line["prompt"][0] = 512; }),
                "prompt[0]: token 512 is not an id of the vocabulary of 512");
    expect_says(change([](Json& line) { line["output"]["max_tokens"] = 1 << 20; }), "max_tokens: ");
    expect_says(change([](Json& line) { line["sampling"]["top_p"] = 7.5; }), "top_p: 7.5");
    expect_says(change([](Json& line) { line["choices"] = 1000; }), "choices: 1000");
}

TEST_F(ReplayRefusal, ACancellation) {
    expect_says(refusal("cancel",
                        [](Json& line) {
                            line["request"] = 4000;
                            return true;
                        }),
                "request 4000: is cancelled in the trace, but is not there in this run");
}

TEST_F(ReplayRefusal, AStepThatIsMissing) {
    std::vector<std::string> lines = trace::lines_of(text_);
    for (std::size_t i = 0; i < lines.size(); ++i)
        if (lines[i].find("\"kind\":\"step\"") != std::string::npos) {
            lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        }
    EXPECT_NE(refusal_of(trace::joined(lines)).find("the trace has 2, this run 1"),
              std::string::npos);
}

TEST_F(ReplayRefusal, SettingsThatThisModelOrMachineCannotHave) {
    const auto with = [this](const char* name, Json value) {
        return refusal("header", [&](Json& line) {
            line["settings"][name] = value;
            return true;
        });
    };
    EXPECT_EQ(with("max_step_tokens", 1 << 20),
              "max_step_tokens is 1048576, but the model was set up for 2048");
    EXPECT_NE(with("page_count", 1).find("a cache of 1 pages"), std::string::npos);
    EXPECT_NE(with("prefill_segment", 100).find("prefill_segment is 100"), std::string::npos);
    EXPECT_NE(with("max_rows", 100000).find("'settings.max_rows' is 100000, not within"),
              std::string::npos);
    const std::string huge = refusal("header", [](Json& line) {
        line["settings"]["max_rows"] = 65536;
        line["settings"]["page_count"] = 1 << 26;
        line["settings"]["max_model_len"] = 1 << 26;
        return true;
    });
    EXPECT_NE(huge.find("the settings ask for 65536 rows of "), std::string::npos) << huge;
}

TEST_F(ReplayRefusal, AnotherBuildMachineOrModel) {
    const trace::Header traced = trace::sample_header();
    EXPECT_TRUE(check_identity(traced, traced.identity));
    trace::Header other = traced;
    other.threads = 64;  // neither changes a bit
    other.version = "0.0.9";
    EXPECT_TRUE(check_identity(other, traced.identity));
    const std::vector<TextIdentity> changed = test::each_field_changed(traced.identity);
    const std::vector<IdentityField> fields = listed(traced.identity);
    for (std::size_t i = 0; i < changed.size(); ++i) {
        const auto checked = check_identity(traced, changed[i]);
        ASSERT_FALSE(checked) << fields[i].name;
        const std::string says = fmt::format("{}: the trace has {}, this run {}", fields[i].name,
                                             fields[i].value, listed(changed[i])[i].value);
        EXPECT_EQ(checked.error().message.substr(0, says.size()), says);
    }
    TextIdentity here = traced.identity;
    here.variant = "avx512";
    EXPECT_EQ(check_identity(traced, here).error().message,
              "variant: the trace has avx2, this run avx512 (ESPALIER_CPU_VARIANT=avx2 chooses it, "
              "where the machine has it)");
    here = traced.identity;
    here.model = "77";
    EXPECT_EQ(check_identity(traced, here).error().message,
              "model: the trace has 0123456789abcdef, this run 77 (the trace's is 'tiny "
              "\"quoted\"')");
}

TEST_F(ReplayRefusal, ATraceThatEndsEarlyIsRepeatedUpToThere) {
    const auto whole = replay_text(text_, family_);
    ASSERT_TRUE(whole) << whole.error().message;
    std::vector<std::string> lines = trace::lines_of(text_);
    lines.resize(lines.size() / 2);
    const auto half = replay_text(trace::joined(lines), family_);
    ASSERT_TRUE(half) << half.error().message;
    EXPECT_EQ(half->ending, trace::Ending::missing);
    EXPECT_LT(half->steps, whole->steps);
    EXPECT_GT(half->unfinished, 0);
}

// Whatever is changed: it runs again as it says, or is refused with a sentence. A failed CHECK
// would throw, and so fail this test.
TEST_F(ReplayRefusal, ChangedFilesAreRefusedOrRunAsTheySay) {
    Random random(11);
    int refused = 0;
    const int tries = kWorkloads * 2;
    for (int i = 0; i < tries; ++i) {
        const std::string changed = trace::mutated(text_, random);
        const auto again = replay_text(changed, family_);
        refused += again ? 0 : 1;
        EXPECT_TRUE(again || !again.error().message.empty());
    }
    EXPECT_GT(refused, tries / 3);
}

}  // namespace
}  // namespace espalier::replay
