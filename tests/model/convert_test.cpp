// SPDX-License-Identifier: Apache-2.0
// A GGUF model and the safetensors that convert writes of it are the same model: bit for bit where
// blocks are codes and scales, elsewhere with each number rounded to bf16 once.
#include "model/convert.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <random>

#include "base/block_format.hpp"
#include "linalg/round_weights.hpp"
#include "model/stored_matrix.hpp"
#include "model/tiny_model.hpp"
#include "support/gguf_blocks.hpp"
#include "support/gguf_model.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::QuantizedLayout;
using checkpoint::StoredType;

// Block format of a matrix; `none`: as it is.
using Formats = std::function<BlockCode(const std::string& name)>;

class ConvertTest : public testing::Test {
  protected:
    static checkpoint::SyntheticModel model(const char* preset, bool tied = false) {
        auto made = checkpoint::synthetic_preset(preset).value();
        made.dtype = DType::bf16;
        made.config.num_hidden_layers = 2;
        made.config.num_attention_heads = 2;
        made.config.hidden_size = 256;
        made.config.intermediate_size = 256;
        made.config.moe_intermediate_size = 256;
        made.config.tie_word_embeddings = tied;
        if (made.config.q_lora_rank > 0) made.config.q_lora_rank = 256;
        return made;
    }
    fs::path write(const checkpoint::SyntheticModel& made, const Formats& format_of) {
        const fs::path source = fresh();
        write_model(made, source);
        const SafetensorsEditor file(source / "model.safetensors");
        std::mt19937 random(21);
        GgufTensors tensors = plain_tensors(file);
        for (auto& [name, data] : tensors) {
            if (data.shape.size() == 1 || name.ends_with("mlp.gate.weight")) continue;
            const BlockCode code = format_of(name);
            if (code == BlockCode::none) continue;
            data.type = ggml_type(code);
            data.bytes = random_blocks(code, data.shape[0] * data.shape[1], random).blocks;
        }
        GgufWriter writer;
        add_config(writer, made.config);
        add_tensors(writer, with_stacked_experts(std::move(tensors), made.config.n_routed_experts));
        const fs::path gguf = fresh().string() + ".gguf";
        writer.save(gguf);
        return gguf;
    }
    Expected<void> run(const fs::path& from, const fs::path& to, const ConvertOptions& how = {}) {
        ESPALIER_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::open(from.string()));
        return convert(source, to, pool_, how);
    }
    fs::path fresh() { return directory_.path() / fmt::format("m{}", files_++); }

    // Every matrix's numbers, from both: codes are exact, others rounded to bf16.
    static void expect_numbers(const Checkpoint& gguf, const Checkpoint& made) {
        for (const std::string& name : gguf.names()) {
            const checkpoint::Tensor tensor = *gguf.stored(name);
            if (tensor.shape.size() != 2) continue;
            const std::string matrix = name.substr(0, name.rfind('.'));
            const std::int64_t n = tensor.shape[0], k = tensor.shape[1];
            auto stored = checkpoint::find_weight(made, matrix, n, k);
            ASSERT_TRUE(stored) << stored.error().message;
            const bool rounded = stored->format.code == WeightCode::bf16;
            const StoredMatrix got{.stored = std::move(*stored), .n = n, .k = k};
            const std::vector<float> wanted = widen(tensor);
            std::vector<float> row(static_cast<std::size_t>(k));
            for (std::int64_t i = 0; i < n; ++i) {
                linalg::widen_output(got.whole(), i, row.data());
                for (std::int64_t j = 0; j < k; ++j) {
                    const float want = wanted[static_cast<std::size_t>(i * k + j)];
                    ASSERT_EQ(row[static_cast<std::size_t>(j)],
                              rounded ? to_float(to_bf16(want)) : want)
                        << name << " [" << i << ", " << j << "]";
                }
            }
        }
    }

    TemporaryDirectory directory_;
    ThreadPool pool_{2};
    int files_ = 0;
};

TEST_F(ConvertTest, CodesAndScalesGiveTheSameBits) {
    for (std::size_t index = 1; index < kBlocks.size(); ++index) {
        const BlockFacts& facts = kBlocks[index];
        if (facts.format.zero_points) continue;
        SCOPED_TRACE(std::string(facts.name));
        const bool tied = index % 3 == 0;
        const fs::path out = fresh();
        const fs::path gguf = write(model(index % 2 == 0 ? "tiny-v3" : "tiny-glm", tied),
                                    [&](const auto&) { return static_cast<BlockCode>(index); });
        const auto done = run(gguf, out);
        ASSERT_TRUE(done) << done.error().message;
        const auto made = Checkpoint::open(out.string());
        ASSERT_TRUE(made) << made.error().message;
        EXPECT_EQ(made->config().quantization.bits, facts_of(facts.format.code).bits);
        EXPECT_EQ(made->config().quantization.group, facts.format.group_k);
        EXPECT_FALSE(made->config().tie_word_embeddings);
        EXPECT_EQ(made->stored("model.embed_tokens.weight")->type, StoredType::f32);
        expect_numbers(*Checkpoint::open(gguf.string()), *made);
        EXPECT_EQ(logits_of_eight(out), logits_of_eight(gguf));
    }
}

TEST_F(ConvertTest, PlainNumbersStayWhatTheyAre) {
    for (const bool tied : {false, true}) {
        const fs::path out = fresh();
        const fs::path gguf =
            write(model("tiny-v3", tied), [](const auto&) { return BlockCode::none; });
        const auto done = run(gguf, out);
        ASSERT_TRUE(done) << done.error().message;
        const auto from = Checkpoint::open(gguf.string()), made = Checkpoint::open(out.string());
        ASSERT_TRUE(from && made);
        EXPECT_EQ(made->config(), from->config());
        EXPECT_EQ(logits_of_eight(out), logits_of_eight(gguf));
    }
}

// Files of 4 bits have two kinds of codes, and one with minima. One kind holds the codes of all.
TEST_F(ConvertTest, MixedFilesKeepTheirNumbers) {
    const fs::path out = fresh();
    const fs::path gguf = write(model("tiny-v3"), [](const std::string& name) {
        if (name.ends_with("lm_head.weight")) return BlockCode::q8_0;
        if (name.find("down_proj") != std::string::npos) return BlockCode::q6_k;
        if (name.find("o_proj") != std::string::npos) return BlockCode::q4_k;
        if (name.find("q_a_proj") != std::string::npos) return BlockCode::none;
        return name.find("embed_tokens") != std::string::npos ? BlockCode::q5_k : BlockCode::q4_0;
    });
    const auto done = run(gguf, out);
    ASSERT_TRUE(done) << done.error().message;
    const auto from = Checkpoint::open(gguf.string()), made = Checkpoint::open(out.string());
    ASSERT_TRUE(made) << made.error().message;
    const checkpoint::Quantization body{QuantizedLayout::int8, 8, 16},
        head{QuantizedLayout::int8, 8, 32};
    EXPECT_EQ(made->config().quantization, body);
    EXPECT_EQ(made->config().head_quantization, head);
    EXPECT_EQ(made->stored("model.layers.0.self_attn.o_proj.weight")->type, StoredType::bf16);
    EXPECT_FALSE(made->has("model.layers.0.self_attn.o_proj.weight_scale"));
    expect_numbers(*from, *made);
    auto config = made->config();
    config.quantization = {};
    config.head_quantization.reset();
    EXPECT_EQ(config, from->config());
    for (const float logit : logits_of_eight(out)) ASSERT_TRUE(std::isfinite(logit));
}

TEST_F(ConvertTest, TextsAndDefaultsGoAlong) {
    const fs::path out = fresh();
    const fs::path gguf = write(model("tiny-v3"), [](const auto&) { return BlockCode::q8_0; });
    const auto done =
        run(gguf, out, {.texts = {{"tokenizer.json", "{}"}}, .shard_limit_bytes = 200'000});
    ASSERT_TRUE(done) << done.error().message;
    std::ifstream text(out / "tokenizer.json");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(text), {}), "{}");
    EXPECT_TRUE(fs::exists(out / "model.safetensors.index.json"));
    EXPECT_FALSE(fs::exists(out / "convert.txt"));
    EXPECT_EQ(logits_of_eight(out), logits_of_eight(gguf));
}

TEST_F(ConvertTest, RefusesByName) {
    const auto expect = [](const Expected<void>& result, std::string_view part) {
        ASSERT_FALSE(result);
        EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    };
    const fs::path safetensors = fresh(), out = fresh();
    write_model(model("tiny-v3"), safetensors);
    expect(run(safetensors, out), "no GGUF file; convert reads these");
    const fs::path gguf = write(model("tiny-v3"), [](const auto&) { return BlockCode::q8_0; });
    expect(run(gguf, safetensors), "not empty, and nothing that convert began");
}

}  // namespace
}  // namespace espalier::model
