// SPDX-License-Identifier: Apache-2.0
// Loading EAGLE3 drafts: every tensor is accounted for, and what does not fit is refused by name.
#include "draft/eagle3_weights.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"
#include "draft/tiny_drafts.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::draft {
namespace {

using checkpoint::SyntheticDraft;

SyntheticDraft tiny_draft() {
    checkpoint::SyntheticModel model = must(checkpoint::synthetic_preset("tiny-v3"));
    return checkpoint::synthetic_draft_for(model);
}

checkpoint::ModelConfig target_config() {
    return must(checkpoint::synthetic_preset("tiny-v3")).config;
}

// Writes the draft, lets `damage` at its file, and loads it.
Expected<Eagle3Weights> load(const SyntheticDraft& draft,
                             const std::function<void(SafetensorsEditor&)>& damage = {},
                             const checkpoint::ModelConfig& target = target_config()) {
    static CpuDevice device(1);
    static const auto backend = ops::make_cpu_backend(best_cpu_variant());
    const TemporaryDirectory directory;
    const auto path = directory.path() / "draft";
    ThreadPool pool(1);
    ESPALIER_RETURN_IF_ERROR(checkpoint::write_synthetic_draft(draft, path, pool));
    if (damage) {
        SafetensorsEditor editor(path / "model.safetensors");
        damage(editor);
        editor.save();
    }
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened,
                              checkpoint::Checkpoint::open_eagle3(path.string()));
    return Eagle3Weights::load(std::make_shared<const checkpoint::Checkpoint>(std::move(opened)),
                               target, device, *backend);
}

TEST(Eagle3Weights, AllPublishedVariantsLoad) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3})
        for (int variant = 0; variant < 4; ++variant) {
            SyntheticDraft draft = tiny_draft();
            draft.tensors.dtype = dtype;
            if (dtype == DType::e4m3) draft.config.layer.fp8_block = 128;
            draft.config.fc_norm = variant == 1;
            draft.config.norm_output = variant == 1;
            draft.config.norm_before_fc = variant == 2;
            if (variant == 2) draft.config.layer.q_lora_rank = 0;
            if (variant == 3) draft.config.draft_vocab_size = draft.config.layer.vocab_size;
            if (variant == 3) draft.tensors.embedding = true;
            if (variant == 3) draft.tensors.layer = "layers.0.";
            const auto loaded = load(draft);
            ASSERT_TRUE(loaded) << variant << ": " << loaded.error().message;
            EXPECT_EQ(loaded->config, draft.config);
            EXPECT_EQ(loaded->tap_layers, (std::vector<std::int32_t>{0, 1, 3}));
            EXPECT_EQ(loaded->tap_norms.size(), variant == 1 ? 3u : 0u);
            EXPECT_EQ(loaded->taps_norm.empty(), variant != 2);
            EXPECT_EQ(loaded->embedding.has_value(), variant == 3);
            EXPECT_EQ(loaded->target_of.bytes() == 0, variant == 3);
        }
}

TEST(Eagle3Weights, TheVocabularyIsReadAsOffsets) {
    const auto loaded = load(tiny_draft());
    ASSERT_TRUE(loaded) << loaded.error().message;
    const auto* target_of = loaded->target_of.as<std::int32_t>();
    const auto* draft_of = loaded->draft_of.as<std::int32_t>();
    for (std::int32_t draft = 0; draft < 256; ++draft) {
        EXPECT_EQ(target_of[draft], 2 * draft);
        EXPECT_EQ(draft_of[2 * draft], draft);
        EXPECT_EQ(draft_of[2 * draft + 1], -1);
    }
}

TEST(Eagle3Weights, RefusesWhatDoesNotFit) {
    using checkpoint::expect_error;
    const SyntheticDraft draft = tiny_draft();
    expect_error(load(draft, [](auto& file) { file.tensors.erase("fc.weight"); }),
                 {"no tensor 'fc.weight'"});
    expect_error(load(draft,
                      [](auto& file) {
                          file.put("midlayer.mlp.gate.weight", "BF16", {8, 128}, 2);
                      }),
                 {"1 tensor(s)", "midlayer.mlp.gate.weight"});
    expect_error(load(draft, [](auto& file) { file.put("fc_norm.0.weight", "BF16", {128}, 2); }),
                 {"fc_norm.0.weight"});
    expect_error(load(draft,
                      [](auto& file) {
                          file.put("fc.weight", "BF16", {128, 256}, 2);
                      }),
                 {"fc.weight", "[128, 256]", "[128, 384]"});
    expect_error(load(draft, [](auto& file) { file.tensors.erase("d2t"); }),
                 {"draft_vocab_size is 256 of 512", "d2t"});
    expect_error(load(draft, [](auto& file) { file.put("d2t", "I64", {255}, 8); }),
                 {"d2t", "[255]", "[256]"});
    expect_error(load(draft, [](auto& file) { file.put("d2t", "F32", {256}, 4); }), {"d2t", "F32"});
    expect_error(load(draft,
                      [](auto& file) {
                          file.put("lm_head.weight", "F32", {256, 128}, 4);
                      }),
                 {"lm_head", "do not mix"});
    checkpoint::ModelConfig other = target_config();
    other.vocab_size = 500;
    expect_error(load(draft, {}, other), {"vocab_size is 512", "500"});
    other = target_config();
    other.hidden_size = 64;
    expect_error(load(draft, {}, other), {"target_hidden_size is 128", "64"});
    other = target_config();
    other.kv_lora_rank = 256;
    expect_error(load(draft, {}, other), {"kv_lora_rank is 512", "256"});
    other = target_config();
    other.num_hidden_layers = 2;
    expect_error(load(draft, {}, other), {"a target of 2 layers", "0, 1, 3"});
}

// Hostile maps of tokens.
TEST(Eagle3Weights, RefusesAVocabularyThatContradictsItself) {
    using checkpoint::expect_error;
    const auto offset = [](std::size_t index, std::int64_t value) {
        return [index, value](SafetensorsEditor& file) {
            std::memcpy(file.tensors["d2t"].bytes.data() + 8 * index, &value, 8);
        };
    };
    const SyntheticDraft draft = tiny_draft();
    expect_error(load(draft, offset(0, -1)), {"d2t[0] is -1", "512"});
    expect_error(load(draft, offset(255, 257)), {"d2t[255] is 257"});
    expect_error(load(draft, offset(5, INT64_MAX)), {"d2t[5]"});
    expect_error(load(draft, offset(5, INT64_MIN)), {"d2t[5]"});
    expect_error(load(draft, offset(5, 3)), {"draft tokens 4 and 5 to token 8"});
    expect_error(load(draft, [](auto& file) { file.tensors["t2d"].bytes[7] = 1; }),
                 {"t2d and d2t disagree about token 7"});
}

}  // namespace
}  // namespace espalier::draft
