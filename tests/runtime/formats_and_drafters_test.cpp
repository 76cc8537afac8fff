// SPDX-License-Identifier: Apache-2.0
// Doors between features: every format that make-model and quantize write opens with every drafter,
// each of them drafts, and no text changes.
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/synthetic.hpp"
#include "engine/engine.hpp"
#include "model/packed_weights.hpp"
#include "model/quantize.hpp"
#include "runtime/runtime.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::runtime {
namespace {

class FormatsAndDrafters : public testing::TestWithParam<std::string> {
  protected:
    // "int4" as make-model writes it, "bf16>int4" as quantize makes it of bf16, "+packed" with the
    // CPU's layout beside it.
    void write(std::string format) {
        const bool packed = format.ends_with("+packed");
        format = format.substr(0, format.find('+'));
        const std::size_t arrow = format.find('>');
        auto model = checkpoint::synthetic_preset("tiny-v3").value();
        const auto stored = checkpoint::store_as(format.substr(0, arrow), model);
        ASSERT_TRUE(stored) << stored.error().message;
        ThreadPool pool(1);
        model_ = (directory_.path() / "model").string();
        draft_ = (directory_.path() / "draft").string();
        ASSERT_TRUE(checkpoint::write_synthetic(model, model_, pool));
        ASSERT_TRUE(checkpoint::write_synthetic_draft(checkpoint::synthetic_draft_for(model),
                                                      draft_, pool));
        if (arrow != std::string::npos) {
            const auto source = checkpoint::Checkpoint::open(model_);
            model_ += "-rounded";
            const auto made = model::quantize(
                *source, model_, pool, {.code = parse_rounding(format.substr(arrow + 1)).value()});
            ASSERT_TRUE(made) << made.error().message;
        }
        if (!packed) return;
        CpuDevice device(1);
        const auto written =
            model::write_packed_weights(std::make_shared<const checkpoint::Checkpoint>(
                                            checkpoint::Checkpoint::open(model_).value()),
                                        device);
        ASSERT_TRUE(written) << written.error().message;
    }

    struct Run {
        std::vector<std::int32_t> tokens;
        std::set<std::string> drafted;  // drafters with at least one draft
    };
    Run run(const std::string& speculate) {
        RuntimeOptions options;
        options.model = model_;
        if (speculate == "eagle3" || speculate == "auto") options.draft = draft_;
        options.load.threads = 1;
        options.engine.sizes = {.rows = 1, .pages = 8, .max_model_len = 256};
        options.engine.grant = engine::NodeGrant::everything;
        options.engine.speculate = {speculate};
        auto runtime = Runtime::open(options);
        if (!runtime) throw std::runtime_error(runtime.error().message);
        engine::Request request;
        // Four tokens in turn, and hardly others: n-grams have what to find.
        for (int i = 0; i < 40; ++i) request.prompt.push_back(300 + i % 4);
        for (int i = 0; i < 4; ++i) request.sampling.logit_bias.push_back({300 + i, 20.0f});
        request.sampling.seed = 3;
        request.output.max_tokens = 24;
        request.output.ignore_eos = true;
        auto stream = runtime->engine().submit(request);
        if (!stream) throw std::runtime_error(stream.error().message);
        engine::Updates updates;
        Run result;
        accept::Usage usage;
        while (stream->next(updates)) {
            for (const accept::CommittedToken& token : updates.choices[0].emission.tokens)
                result.tokens.push_back(token.token);
            usage = updates.choices[0].usage;
        }
        const std::vector<std::string> names = runtime->engine().status().drafters;
        for (std::size_t d = 0; d < names.size(); ++d)
            if (usage.drafted_from[d] > 0) result.drafted.insert(names[d]);
        return result;
    }

    TemporaryDirectory directory_;
    std::string model_, draft_;
};

TEST_P(FormatsAndDrafters, EveryDrafterDraftsAndNoTextChanges) {
    ASSERT_NO_FATAL_FAILURE(write(GetParam()));
    const Run plain = run("off");
    ASSERT_EQ(plain.tokens.size(), 24u);
    for (const std::string drafter : {"ngram", "mtp", "eagle3"}) {
        SCOPED_TRACE(drafter);
        const Run drafted = run(drafter);
        EXPECT_EQ(drafted.tokens, plain.tokens);
        EXPECT_EQ(drafted.drafted, std::set<std::string>{drafter});
    }
    const Run all = run("auto");
    EXPECT_EQ(all.tokens, plain.tokens);
    EXPECT_TRUE(all.drafted.contains("mtp"));
    EXPECT_TRUE(all.drafted.contains("eagle3"));
}

std::vector<std::string> formats() {
    std::vector<std::string> names;
    for (const std::string_view dtype : checkpoint::synthetic_dtype_names())
        names.emplace_back(dtype);
    for (const char* made : {"bf16>int8", "bf16>int4", "fp8>int8", "fp8>int4", "bf16+packed",
                             "fp8+packed", "bf16>int8+packed", "bf16>int4+packed", "nvfp4+packed"})
        names.emplace_back(made);
    return names;
}

INSTANTIATE_TEST_SUITE_P(All, FormatsAndDrafters, testing::ValuesIn(formats()),
                         [](const auto& format) {
                             std::string name = format.param;
                             for (char& c : name)
                                 if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                             return name;
                         });

}  // namespace
}  // namespace espalier::runtime
