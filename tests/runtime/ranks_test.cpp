// SPDX-License-Identifier: Apache-2.0
// Engines on several ranks, here threads of one process: the same texts as one rank's, whatever
// drafts, grammars and workloads; a rank that is not like the first is named with what differs.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/synthetic.hpp"
#include "engine/model_target.hpp"
#include "grammar/compiler.hpp"
#include "lossless/check.hpp"
#include "parallel/local_ranks.hpp"
#include "replay/convert.hpp"
#include "replay/replayer.hpp"
#include "runtime/engine_parts.hpp"
#include "runtime/follow.hpp"
#include "runtime/grammars.hpp"
#include "runtime/identity.hpp"
#include "runtime/rank_leader.hpp"
#include "runtime/runtime.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::runtime {
namespace {

using engine::Command;
using engine::RankChannel;

#if defined(ESPALIER_SANITIZED)
constexpr std::uint64_t kRankWorkloads = 2;
#else
constexpr std::uint64_t kRankWorkloads = 12;
#endif

const std::string kShipped = std::string(test::source_directory()) + "/models/sapling";

// The first rank leads, the others do as they are told.
void with_ranks(int count, const std::function<void(RankChannel&)>& lead) {
    constexpr std::chrono::seconds kTimeout{60};
    const auto body = [&](parallel::Ranks& ranks) {
        if (ranks.rank() > 0) {
            if (const auto done = follow(ranks, kTimeout); !done)
                throw std::runtime_error(done.error().message);
            return;
        }
        RankChannel channel(ranks, kTimeout);
        lead(channel);
        channel.send(Command::stop);
    };
    parallel::run_local_ranks(count, body, {.timeout = kTimeout});
}

// A tiny model of random weights with an MTP layer, and an EAGLE3 draft for it.
struct TinyFiles {
    TemporaryDirectory directory;
    std::string model = (directory.path() / "model").string();
    std::string draft = (directory.path() / "draft").string();

    explicit TinyFiles(const std::string& preset = "tiny-v3") {
        auto synthetic = checkpoint::synthetic_preset(preset).value();
        ThreadPool pool(1);
        if (!checkpoint::write_synthetic(synthetic, model, pool) ||
            !checkpoint::write_synthetic_draft(checkpoint::synthetic_draft_for(synthetic), draft,
                                               pool))
            throw std::runtime_error("no model could be written");
    }
};

RuntimeOptions options_for(const std::string& model, RankChannel* channel) {
    RuntimeOptions options;
    options.model = model;
    options.load.threads = 1;
    options.load.channel = channel;
    options.engine.sizes = {.rows = 2, .pages = 20, .max_model_len = 512};
    options.engine.grant = engine::NodeGrant::everything;
    return options;
}

struct Told {
    std::vector<std::int32_t> tokens;
    std::vector<float> logprobs;
    bool operator==(const Told&) const = default;
};

Told tell(Runtime& runtime, engine::Request request) {
    request.logprobs = true;
    auto stream = runtime.engine().submit(std::move(request));
    if (!stream) throw std::runtime_error(stream.error().message);
    engine::Updates updates;
    Told told;
    while (stream->next(updates))
        for (const accept::CommittedToken& token : updates.choices[0].emission.tokens) {
            told.tokens.push_back(token.token);
            told.logprobs.push_back(token.logprob);
        }
    return told;
}

engine::Request request_for(const Runtime& runtime, const std::string& prompt, float temperature) {
    engine::Request request;
    request.prompt = runtime.files().encode_prompt(prompt, text::SpecialTokens::as_text).value();
    request.sampling.temperature = temperature;
    request.sampling.seed = 5;
    request.output.max_tokens = 40;
    return request;
}

// Texts of one engine: greedy and drawn, and one that a grammar holds.
std::vector<Told> texts_of(const RuntimeOptions& options) {
    auto runtime = Runtime::open(options);
    if (!runtime) throw std::runtime_error(runtime.error().message);
    std::vector<Told> texts;
    for (const float temperature : {0.0f, 1.0f})
        texts.push_back(tell(*runtime, request_for(*runtime, "def main():\n    for", temperature)));
    if (grammar::available()) {
        const auto compiler = make_grammar_compiler(runtime->files()).value();
        engine::Request request = request_for(*runtime, "value: ", 1.0f);
        request.grammar =
            compiler->compile({.kind = grammar::Kind::regex, .text = "[a-f]{3,9}(, [0-9]+)*"})
                .value();
        texts.push_back(tell(*runtime, request));
    }
    return texts;
}

TEST(Ranks, TextsAreThoseOfOneRankWhateverDrafts) {
    for (const std::string speculate : {"off", "ngram", "mtp", "auto"}) {
        RuntimeOptions options = options_for(kShipped, nullptr);
        options.engine.speculate = {speculate};
        if (speculate == "auto") options.draft = kShipped + "-eagle3";
        const std::vector<Told> alone = texts_of(options);
        EXPECT_EQ(alone.front().tokens.size(), 40u);
        for (const int count : speculate == "auto" ? std::vector{2, 4} : std::vector{2})
            with_ranks(count, [&](RankChannel& channel) {
                RuntimeOptions ranked = options;
                ranked.load.channel = &channel;
                EXPECT_TRUE(texts_of(ranked) == alone) << speculate << ", " << count << " ranks";
            });
    }
}

TEST(Ranks, OtherFamiliesToo) {
    for (const std::string preset : {"tiny-v2", "tiny-v3"}) {
        const TinyFiles tiny(preset);
        RuntimeOptions options = options_for(tiny.model, nullptr);
        if (preset == "tiny-v3") options.draft = tiny.draft;
        const std::vector<Told> alone = texts_of(options);
        with_ranks(2, [&](RankChannel& channel) {
            options.load.channel = &channel;
            EXPECT_TRUE(texts_of(options) == alone) << preset;
        });
    }
}

// Shared prefixes, preemption, cancellations, every sampling parameter; the plain run is one
// rank's.
TEST(Ranks, WorkloadsAreLossless) {
    const TinyFiles tiny;
    const ModelFiles files = ModelFiles::open(tiny.model, tiny.draft).value();
    const DrafterChoice drafters{.mtp = true, .eagle3 = true};
    EngineSizes sizes;
    sizes.max_model_len = files.checkpoint->config().max_position_embeddings;
    sizes.max_step_tokens = lossless::kWorkloadTokens;
    sizes.max_step_gather = lossless::kWorkloadGather;
    with_ranks(2, [&](RankChannel& channel) {
        LoadOptions load = with_drafters({.threads = 1}, drafters, files);
        LoadedModel whole = LoadedModel::load(files.checkpoint, sizes, load).value();
        load.channel = &channel;
        LoadedModel ranked = LoadedModel::load(files.checkpoint, sizes, load).value();
        lossless::Coverage coverage;
        for (std::uint64_t seed = 1; seed <= kRankWorkloads; ++seed) {
            lossless::Subject subject{*whole.model, *files.tokenizer};
            const bool own = seed % 2 == 0;
            const auto made = [&](const schedule::SchedulerOptions& of) {
                return make_engine_parts(ranked, own ? drafters : DrafterChoice{}, of, {},
                                         *files.tokenizer);
            };
            subject.make_target = [&](const schedule::SchedulerOptions& of)
                -> Expected<std::unique_ptr<engine::Target>> {
                ESPALIER_ASSIGN_OR_RETURN(auto parts, made(of));
                return std::move(parts.target);
            };
            if (own)
                subject.make_parts = [&](const schedule::SchedulerOptions& of)
                    -> Expected<lossless::Subject::Parts> {
                    ESPALIER_ASSIGN_OR_RETURN(auto parts, made(of));
                    lossless::Subject::Parts result;
                    result.taps = parts.taps->taps();
                    result.target = std::move(parts.target);
                    result.drafters = std::move(parts.drafters);
                    result.memory = std::make_shared<EngineParts>(std::move(parts));
                    return result;
                };
            const auto verdict =
                lossless::check_workload(lossless::random_workload(seed, subject), subject);
            ASSERT_TRUE(verdict) << verdict.error().message;
            EXPECT_EQ(verdict->differences, std::vector<std::string>()) << "workload " << seed;
            coverage.add(verdict->coverage);
        }
        EXPECT_GT(coverage.accepted, 0);
        EXPECT_GT(coverage.moved, 0);
    });
}

TEST(Ranks, ATraceOfTwoRanksReplaysOnOne) {
    const TinyFiles tiny;
    const TemporaryDirectory directory;
    const std::string trace = (directory.path() / "trace").string();
    with_ranks(2, [&](RankChannel& channel) {
        RuntimeOptions options = options_for(tiny.model, &channel);
        options.engine.trace = trace;
        auto runtime = Runtime::open(options);
        ASSERT_TRUE(runtime) << runtime.error().message;
        tell(*runtime, request_for(*runtime, "def", 1.0f));
        ASSERT_TRUE(runtime->stop());
    });
    auto reader = trace::Reader::open(trace);
    ASSERT_TRUE(reader) << reader.error().message;
    const ModelFiles files = ModelFiles::open(tiny.model).value();
    LoadedModel loaded =
        LoadedModel::load(files.checkpoint,
                          replay::stepper_settings_of(reader->header().settings).schedule,
                          {.threads = 1})
            .value();
    const auto replayed = replay::replay(
        *reader,
        [&](std::int64_t pages) { return engine::ModelTarget::create(*loaded.model, pages); },
        *files.tokenizer);
    ASSERT_TRUE(replayed) << replayed.error().message;
    EXPECT_EQ(replayed->tokens, 40);
}

// A rank that answers by hand: `answer` says what to each command.
std::string refusal_of(const std::string& model,
                       const std::function<Expected<std::vector<std::byte>>(Command)>& answer) {
    std::string message;
    parallel::run_local_ranks(2, [&](parallel::Ranks& ranks) {
        if (ranks.rank() == 0) {
            RankChannel channel(ranks);
            const auto opened = Runtime::open(options_for(model, &channel));
            message = opened ? "opened" : opened.error().message;
            channel.send(Command::stop);
            return;
        }
        std::vector<std::byte> buffer;
        for (std::uint64_t serial = 1;; ++serial) {
            ranks.broadcast(buffer, 0, engine::kMostCommandBytes);
            FlatReader reader(buffer);
            const Command command = engine::read_command(reader, serial).value();
            if (command == Command::stop) return;
            if (command == Command::measure || command == Command::open ||
                command == Command::target)
                engine::answer(ranks, answer(command));
        }
    });
    return message;
}

template <typename T>
std::vector<std::byte> written(const T& value) {
    std::vector<std::byte> buffer;
    FlatWriter writer(buffer);
    write(writer, value);
    return buffer;
}

TEST(Ranks, ARankThatDiffersIsNamedWithTheField) {
    const TinyFiles tiny;
    const ModelFiles files = ModelFiles::open(tiny.model).value();
    RuntimeOptions options = options_for(tiny.model, nullptr);
    const DrafterChoice drafters = choose_drafters({"auto"}, files).value();
    const SizeFacts own = size_facts(files, drafters).value();
    const RankNumbers numbers{.machine = machine_identity(),
                              .memory_bytes = own.memory_bytes,
                              .weight_bytes = own.weight_bytes,
                              .page_bytes = own.page_bytes};
    const EngineSizes sizes = derive_sizes(options.engine.sizes, {.context = own.context,
                                                                  .weight_bytes = own.weight_bytes,
                                                                  .page_bytes = own.page_bytes,
                                                                  .memory_bytes = own.memory_bytes})
                                  .value();
    const LoadedModel loaded =
        LoadedModel::load(files.checkpoint, sizes, {.threads = 1, .mtp = true}).value();
    const RankFacts facts = rank_facts(loaded, sizes).value();
    for (const std::string name : {"version", "build", "variant", "files", "max_rows"}) {
        const auto answer = [&](Command command) -> Expected<std::vector<std::byte>> {
            if (command == Command::measure) return written(numbers);
            RankFacts other = facts;
            for (RankFact& fact : other)
                if (fact.name == name) fact.value = "another";
            return written(other);
        };
        const std::string message = refusal_of(tiny.model, answer);
        EXPECT_TRUE(message.starts_with("rank 1 has " + name + " another, rank 0 ")) << message;
    }
    EXPECT_EQ(refusal_of(tiny.model,
                         [&](Command command) -> Expected<std::vector<std::byte>> {
                             if (command == Command::measure) return written(numbers);
                             return fail(ErrorKind::io, "no such disk");
                         }),
              "rank 1: no such disk");
}

// Pages are those of the rank with the least room.
TEST(Ranks, ARankWithLessMemoryDecidesThePages) {
    const TinyFiles tiny;
    const ModelFiles files = ModelFiles::open(tiny.model).value();
    const SizeFacts own = size_facts(files, choose_drafters({"auto"}, files).value()).value();
    const auto answer = [&](Command command) -> Expected<std::vector<std::byte>> {
        if (command != Command::measure)
            return fail(ErrorKind::io, "asked for {}", name_of(command));
        return written(RankNumbers{.machine = "another machine",
                                   .memory_bytes = own.weight_bytes + own.page_bytes,
                                   .weight_bytes = own.weight_bytes,
                                   .page_bytes = own.page_bytes});
    };
    const std::string message = refusal_of(tiny.model, answer);
    EXPECT_TRUE(message.ends_with("(rank 1)")) << message;
    EXPECT_TRUE(message.starts_with("pages: 20 take ")) << message;
}

// Messages of any bytes are refused with a sentence or read within their bounds.
TEST(Ranks, HostileMessagesAreRefused) {
    RankModel model{.path = "/m", .threads = 2, .rounding = WeightCode::int4};
    model.head_rounding = WeightCode::int8;
    model.activations = NumberMode::int8;
    model.mtp = true;
    const std::vector<std::byte> good = written(model);
    FlatReader whole(good);
    EXPECT_TRUE(read_rank_model(whole).value() == model);
    for (std::size_t length = 0; length < good.size(); ++length) {
        FlatReader reader(std::span<const std::byte>(good).first(length));
        const auto read = read_rank_model(reader);
        ASSERT_FALSE(read);
        EXPECT_FALSE(read.error().message.empty());
    }
    model.sizes.max_step_tokens = std::int64_t{1} << 40;
    const std::vector<std::byte> large = written(model);
    FlatReader reader(large);
    EXPECT_EQ(read_rank_model(reader).error().message,
              "max_step_tokens of 1099511627776, not within 0…1048576");
}

}  // namespace
}  // namespace espalier::runtime
