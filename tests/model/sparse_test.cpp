// SPDX-License-Identifier: Apache-2.0
// Sparse attention on whole models. Weights are functions of their tensors' names, so a model with
// an indexer has the numbers of the one without beside it: as long as a token sees no more keys
// than are chosen both give the same bits, and then they must not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/kv_layout.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

constexpr std::int64_t kTokens = 100;

std::vector<std::int32_t> prompt_of(std::int64_t tokens) {
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < prompt.size(); ++i)
        prompt[i] = static_cast<std::int32_t>((i * 131 + i * i * 7) % 500);
    return prompt;
}

// Logits of every position; chunk 0: all at once.
std::vector<float> logits_of(const checkpoint::SyntheticModel& preset, std::int64_t tokens,
                             std::int64_t chunk = 0) {
    const TemporaryDirectory directory;
    write_model(preset, directory.path() / "model");
    RunningModel model(directory.path() / "model", 2, best_cpu_variant(), 1024);
    auto sequence = Sequence::create(*model, tokens, tokens + 1);
    EXPECT_TRUE(sequence);
    std::vector<float> logits;
    const std::vector<std::int32_t> prompt = prompt_of(tokens);
    for (std::int64_t first = 0; first < tokens;) {
        const std::int64_t count = chunk == 0 ? tokens : std::min(chunk, tokens - first);
        const auto fed = sequence->feed(*model,
                                        std::span(prompt).subspan(static_cast<std::size_t>(first),
                                                                  static_cast<std::size_t>(count)),
                                        count);
        EXPECT_TRUE(fed) << fed.error().message;
        EXPECT_FALSE(fed->nonfinite);
        const std::vector<float> some = model.download(fed->logits);
        logits.insert(logits.end(), some.begin(), some.end());
        first += count;
    }
    return logits;
}

checkpoint::SyntheticModel preset_of(const char* name, std::int64_t top_k = 0) {
    checkpoint::SyntheticModel preset = *checkpoint::synthetic_preset(name);
    if (top_k > 0) preset.config.indexer->top_k = top_k;
    return preset;
}

// The first position whose logits have other bits.
std::int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b,
                              std::int64_t tokens) {
    const std::size_t width = a.size() / static_cast<std::size_t>(tokens);
    for (std::int64_t t = 0; t < tokens; ++t)
        if (std::memcmp(a.data() + static_cast<std::size_t>(t) * width,
                        b.data() + static_cast<std::size_t>(t) * width, width * 4) != 0)
            return t;
    return tokens;
}

TEST(Sparse, UpToTheChosenKeysTheBitsAreThoseOfDenseAttention) {
    const auto dense = logits_of(preset_of("tiny-v3"), kTokens);
    EXPECT_EQ(first_difference(logits_of(preset_of("tiny-v32"), kTokens), dense, kTokens), 32);
    EXPECT_EQ(first_difference(logits_of(preset_of("tiny-v32", 64), kTokens), dense, kTokens), 64);
    EXPECT_EQ(first_difference(logits_of(preset_of("tiny-v32", 100), kTokens), dense, kTokens),
              kTokens);
    checkpoint::SyntheticModel glm = preset_of("tiny-glm");
    glm.config.routed_scaling_factor = 2.5;
    EXPECT_EQ(first_difference(logits_of(preset_of("tiny-glm5"), kTokens), logits_of(glm, kTokens),
                               kTokens),
              32);
}

// The same weights otherwise: which layers share, and how index keys are rotated, are real.
TEST(Sparse, TheIndexersRulesAreReal) {
    const auto usual = logits_of(preset_of("tiny-v32"), kTokens);
    checkpoint::SyntheticModel other = preset_of("tiny-v32");
    other.config.indexer->interleaved = true;
    EXPECT_LT(first_difference(logits_of(other, kTokens), usual, kTokens), kTokens);
    other.config.indexer->interleaved = false;
    other.config.indexer->shared = {false, true, false};
    EXPECT_LT(first_difference(logits_of(other, kTokens), usual, kTokens), kTokens);
}

// Beyond what is chosen prompts are absorbed: 600 tokens of which the first 256 may be
// decompressed.
TEST(Sparse, PromptsAcrossTheBorderInAnyChunks) {
    constexpr std::int64_t kLong = 600;
    for (const std::int64_t top_k : {300, 32}) {
        const checkpoint::SyntheticModel preset = preset_of("tiny-v32", top_k);
        const auto whole = logits_of(preset, kLong);
        for (const std::int64_t chunk : {7, 250})
            EXPECT_EQ(first_difference(logits_of(preset, kLong, chunk), whole, kLong), kLong)
                << top_k << " keys, chunks of " << chunk;
    }
    EXPECT_EQ(cache::decompressed_below(600, 64, 300), 256);
    EXPECT_EQ(cache::decompressed_below(600, 64, 32), 0);
    EXPECT_EQ(cache::decompressed_below(600, 64, 2048), 576);
    EXPECT_EQ(cache::decompressed_below(6000, 64, 2048), 2048);
}

TEST(Sparse, IndexKeysAreAPlaneOfTheLayersThatHaveAnIndexer) {
    const checkpoint::ModelConfig glm = preset_of("tiny-glm5").config;
    const cache::KvLayout layout = kv_layout(glm, mla::KvFormat::fp8_token);
    EXPECT_EQ(layout.formats(), "fp8_token, index_keys bf16");
    EXPECT_EQ(layout.planes.size(), 5u);
    for (const std::int64_t layer : {0, 1, 2})
        EXPECT_EQ(layout.has(cache::kIndexKeys, cache::Plane::Of::target, layer), layer != 1);
    const cache::KvLayout wide = kv_layout(glm, mla::KvFormat::f32);
    EXPECT_EQ(wide.bytes_per_token(), 3 * 576 * 4 + 2 * 128 * 4);
}

// A backend without an indexer says so by name.
TEST(Sparse, KernelsWithoutAnIndexerRefuse) {
    class Plain final : public mla::Kernels {
      public:
        Expected<void> absorbed(OpContext&, const mla::AbsorbedCall&) const override { return {}; }
        Expected<void> decompressed(OpContext&, const mla::DecompressedCall&) const override {
            return {};
        }
        Expected<void> append(OpContext&, const mla::AppendCall&) const override { return {}; }
        Expected<void> compact(OpContext&, const mla::CompactCall&) const override { return {}; }
        std::size_t scratch_bytes(const mla::Capacities&) const override { return 0; }
    };
    const Expected<void> refused = Plain().check_indexer();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::unsupported);
    EXPECT_NE(refused.error().message.find("sparse attention, whose indexer chooses keys"),
              std::string::npos);
    EXPECT_TRUE(mla::make_cpu_kernels(best_cpu_variant())->check_indexer());
}

}  // namespace
}  // namespace espalier::model
