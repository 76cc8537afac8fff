// SPDX-License-Identifier: Apache-2.0
// A GGUF file gives the bits of a safetensors checkpoint of the same numbers, in every format and
// in every form that files have.
#include "base/gguf.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>

#include "base/block_format.hpp"
#include "base/mapped_file.hpp"
#include "model/packed_weights.hpp"
#include "model/tiny_model.hpp"
#include "parallel/local_ranks.hpp"
#include "support/gguf_blocks.hpp"
#include "support/gguf_model.hpp"
#include "support/paths.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;

std::string bytes_of(const std::vector<float>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

class GgufTest : public testing::Test {
  protected:
    // Every width is a multiple of 256, but for a head's 128 keys.
    static checkpoint::SyntheticModel model(const char* preset, DType dtype) {
        auto made = checkpoint::synthetic_preset(preset).value();
        made.dtype = dtype;
        made.config.num_hidden_layers = 2;
        made.config.num_attention_heads = 2;
        made.config.hidden_size = 256;
        made.config.intermediate_size = 256;
        made.config.moe_intermediate_size = 256;
        if (made.config.q_lora_rank > 0) made.config.q_lora_rank = 256;
        return made;
    }
    fs::path write(const checkpoint::SyntheticModel& model) {
        const fs::path path = directory_.path() / fmt::format("model{}", files_++);
        write_model(model, path);
        return path;
    }
    fs::path save(const checkpoint::ModelConfig& config, const GgufTensors& tensors) {
        GgufWriter file;
        add_config(file, config);
        add_tensors(file, tensors);
        const fs::path path = directory_.path() / fmt::format("m{}.gguf", files_++);
        file.save(path);
        return path;
    }
    static SafetensorsEditor tensors_in(const fs::path& directory) {
        return SafetensorsEditor(directory / "model.safetensors");
    }

    TemporaryDirectory directory_;
    int files_ = 0;
};

TEST_F(GgufTest, PlainNumbersOfEveryFamilyGiveTheSameBits) {
    for (const char* preset : {"tiny-v2", "tiny-v3", "tiny-glm"})
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            SCOPED_TRACE(fmt::format("{} {}", preset, name_of(dtype)));
            const auto made = model(preset, dtype);
            const fs::path directory = write(made);
            const fs::path gguf =
                save(made.config, with_stacked_experts(plain_tensors(tensors_in(directory)),
                                                       made.config.n_routed_experts));
            const auto opened = Checkpoint::open(gguf.string());
            ASSERT_TRUE(opened) << opened.error().message;
            EXPECT_EQ(logits_of_eight(gguf), logits_of_eight(directory));
        }
}

// The halves of kv_b as llama.cpp's converter writes them: keys transposed, values as they are.
GgufTensors with_split_kv_b(GgufTensors tensors, const checkpoint::ModelConfig& config,
                            std::size_t element) {
    GgufTensors split;
    const auto heads = static_cast<std::size_t>(config.num_attention_heads);
    const auto nope = static_cast<std::size_t>(config.qk_nope_head_dim);
    const auto value = static_cast<std::size_t>(config.v_head_dim);
    const auto latent = static_cast<std::size_t>(config.kv_lora_rank);
    for (auto& [name, data] : tensors) {
        const std::size_t at = name.find("kv_b_proj");
        if (at == std::string::npos) {
            split[name] = std::move(data);
            continue;
        }
        GgufData key{.shape = {heads, latent, nope}, .type = data.type, .bytes = {}};
        GgufData values{.shape = {heads, value, latent}, .type = data.type, .bytes = {}};
        const auto number = [&](std::size_t head, std::size_t row, std::size_t column) {
            return data.bytes.substr(((head * (nope + value) + row) * latent + column) * element,
                                     element);
        };
        for (std::size_t head = 0; head < heads; ++head) {
            for (std::size_t column = 0; column < latent; ++column)
                for (std::size_t row = 0; row < nope; ++row) key.bytes += number(head, row, column);
            for (std::size_t row = 0; row < value; ++row)
                for (std::size_t column = 0; column < latent; ++column)
                    values.bytes += number(head, nope + row, column);
        }
        split[name.substr(0, at) + "k_b_proj.weight"] = std::move(key);
        split[name.substr(0, at) + "v_b_proj.weight"] = std::move(values);
    }
    return split;
}

TEST_F(GgufTest, KvBInHalvesGivesTheSameBits) {
    for (const char* preset : {"tiny-v3", "tiny-glm"})
        for (const DType dtype : {DType::f16, DType::bf16}) {
            SCOPED_TRACE(fmt::format("{} {}", preset, name_of(dtype)));
            const auto made = model(preset, dtype);
            const fs::path directory = write(made);
            const GgufTensors tensors =
                with_split_kv_b(with_stacked_experts(plain_tensors(tensors_in(directory)),
                                                     made.config.n_routed_experts),
                                made.config, 2);
            EXPECT_EQ(logits_of_eight(save(made.config, tensors)), logits_of_eight(directory));
        }
}

TEST_F(GgufTest, GateAndUpInOneTensorGiveTheSameBits) {
    const auto made = model("tiny-v3", DType::bf16);
    const fs::path directory = write(made);
    GgufTensors plain = plain_tensors(tensors_in(directory)), joined;
    for (auto& [name, data] : plain) {
        const std::size_t at = name.find("experts.");
        const bool routed = name.find(".mlp.experts.") != std::string::npos;
        if (routed && name.ends_with("up_proj.weight")) continue;
        if (!routed || !name.ends_with("gate_proj.weight")) {
            joined[name] = data;
            continue;
        }
        std::string up = name;
        up.replace(up.find("gate_proj"), 9, "up_proj");
        GgufData both{.shape = {2 * data.shape[0], data.shape[1]},
                      .type = data.type,
                      .bytes = data.bytes + plain.at(up).bytes};
        std::string name_of_both = name;
        name_of_both.replace(name_of_both.find("gate_proj"), 9, "gate_up_proj");
        joined[name_of_both] = std::move(both);
        EXPECT_NE(at, std::string::npos);
    }
    const fs::path gguf =
        save(made.config, with_stacked_experts(std::move(joined), made.config.n_routed_experts));
    EXPECT_EQ(logits_of_eight(gguf), logits_of_eight(directory));
}

// In compressed-tensors' layout.
void put_codes(SafetensorsEditor& file, const std::string& name, const RandomBlocks& from,
               const std::vector<std::int64_t>& shape, const WeightFormat& format) {
    const std::string stem = name.substr(0, name.size() - std::string_view(".weight").size());
    file.tensors.erase(name);
    file.tensors[stem + ".weight_scale"] = {
        "F32", {shape[0], shape[1] / format.group_k}, bytes_of(from.scales)};
    if (format.code == WeightCode::int8) {
        file.tensors[name] = {
            "I8", shape, {reinterpret_cast<const char*>(from.codes.data()), from.codes.size()}};
        return;
    }
    std::string nibbles(from.codes.size() / 2, '\0');
    for (std::size_t i = 0; i < from.codes.size(); ++i)
        nibbles[i / 2] = static_cast<char>(nibbles[i / 2] | (from.codes[i] + 8) << (i % 2 * 4));
    file.tensors[stem + ".weight_packed"] = {"I32", {shape[0], shape[1] / 8}, nibbles};
    file.tensors[stem + ".weight_shape"] = {"I32",
                                            {2},
                                            raw_bytes(static_cast<std::int32_t>(shape[0])) +
                                                raw_bytes(static_cast<std::int32_t>(shape[1]))};
}

std::string rounded(const std::vector<float>& numbers) {
    std::string bytes;
    for (const float number : numbers) bytes += raw_bytes(to_bf16(number));
    return bytes;
}

struct Twins {
    fs::path gguf, safetensors;
};

// All matrices but the router in blocks, and beside it a safetensors checkpoint of the same
// numbers: codes, an embedding of f32 and kv_b rounded to bf16, as both are loaded.
Twins write_twins(const checkpoint::SyntheticModel& made, const fs::path& directory, BlockCode code,
                  const fs::path& gguf) {
    SafetensorsEditor file(directory / "model.safetensors");
    const std::map<std::string, SafetensorsEditor::Entry> source = file.tensors;
    const WeightFormat& format = facts_of(code).format;
    std::mt19937 random(11);
    GgufTensors tensors;
    for (const auto& [name, entry] : source) {
        std::vector<std::uint64_t> shape(entry.shape.begin(), entry.shape.end());
        if (entry.shape.size() == 1 || name.ends_with("mlp.gate.weight")) {
            tensors[name] = {shape, entry.dtype == "F32" ? 0u : 30u, entry.bytes};
            continue;
        }
        const auto weights = static_cast<std::size_t>(entry.shape[0] * entry.shape[1]);
        const RandomBlocks made_blocks = random_blocks(code, weights, random);
        tensors[name] = {shape, ggml_type(code), made_blocks.blocks};
        if (name.ends_with("embed_tokens.weight"))
            file.tensors[name] = {"F32", entry.shape, bytes_of(made_blocks.numbers)};
        else if (name.ends_with("kv_b_proj.weight"))
            file.tensors[name] = {"BF16", entry.shape, rounded(made_blocks.numbers)};
        else
            put_codes(file, name, made_blocks, entry.shape, format);
    }
    file.save();
    const checkpoint::Quantization how{.layout = format.code == WeightCode::int8
                                                     ? checkpoint::QuantizedLayout::int8
                                                     : checkpoint::QuantizedLayout::packed_integers,
                                       .bits = facts_of(format.code).bits,
                                       .group = format.group_k};
    std::ifstream in(directory / "config.json");
    const std::string config{std::istreambuf_iterator<char>(in), {}};
    std::ofstream(directory / "config.json") << checkpoint::quantized_config_json(config, how);
    GgufWriter writer;
    add_config(writer, made.config);
    add_tensors(writer, with_stacked_experts(std::move(tensors), made.config.n_routed_experts));
    writer.save(gguf);
    return {gguf, directory};
}

// The same of two ranks: each unpacks the blocks of its own rows and columns, of which a part may
// begin inside a block of 256.
std::vector<float> logits_of_two_ranks(const fs::path& model) {
    std::mutex mutex;
    std::vector<float> logits;
    parallel::run_local_ranks(2, [&](parallel::Ranks& ranks) {
        const auto here =
            logits_of_eight(model, {.shard = {.rank = ranks.rank(), .count = 2}}, &ranks);
        const std::lock_guard lock(mutex);
        if (!logits.empty()) {
            EXPECT_EQ(here, logits);
        }
        logits = here;
    });
    return logits;
}

TEST_F(GgufTest, EveryBlockFormatGivesTheBitsOfItsCodesAndScales) {
    for (std::size_t index = 1; index < kBlocks.size(); ++index) {
        const auto code = static_cast<BlockCode>(index);
        if (code == BlockCode::q4_k) continue;  // its codes have an offset: the next test
        SCOPED_TRACE(std::string(facts_of(code).name));
        const auto made = model(index % 2 == 0 ? "tiny-v3" : "tiny-v2", DType::bf16);
        const Twins twins = write_twins(made, write(made), code,
                                        directory_.path() / fmt::format("t{}.gguf", index));
        const std::vector<float> from_gguf = logits_of_eight(twins.gguf);
        EXPECT_EQ(from_gguf, logits_of_eight(twins.safetensors));
        EXPECT_EQ(logits_of_two_ranks(twins.gguf), from_gguf);
        EXPECT_NE(from_gguf[1], from_gguf[2]);
        for (const float logit : from_gguf) ASSERT_TRUE(std::isfinite(logit));
    }
}

// Q4_K blocks whose numbers are bf16 numbers: (scale · code − minimum) / 1024 of at most eight
// bits.
std::string short_q4_k(std::size_t weights, std::mt19937& random) {
    std::string blocks;
    for (std::size_t block = 0; block < weights / 256; ++block) {
        std::string one(144, '\0');
        for (char& byte : one) byte = static_cast<char>(random());
        const Fp16 unit = to_fp16(1.0f / 1024);
        std::memcpy(one.data(), &unit, sizeof(unit));
        std::memcpy(one.data() + 2, &unit, sizeof(unit));
        // Scales below 16 and minima below 128 / 2: the high bits of both are 0.
        for (std::size_t i = 0; i < 4; ++i) one[4 + i] = static_cast<char>(one[4 + i] & 0x0f);
        for (std::size_t i = 4; i < 8; ++i) one[4 + i] = static_cast<char>(one[4 + i] & 0x3f);
        blocks += one;
    }
    return blocks;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
    return std::sqrt(sum);
}

// The same numbers as Q4_K, as BF16 and as F32: Q4_K, whose activations are bf16 too, is as far
// from f32 as BF16 is. Sums are of other roundings, so that bits differ.
TEST_F(GgufTest, MinimaAreCounted) {
    const auto made = model("tiny-v3", DType::bf16);
    const fs::path as_bf16 = write(made), as_f32 = write(made);
    SafetensorsEditor narrow = tensors_in(as_bf16), wide = tensors_in(as_f32);
    std::mt19937 random(12);
    GgufTensors tensors;
    for (auto& [name, entry] : narrow.tensors) {
        const std::vector<std::uint64_t> shape(entry.shape.begin(), entry.shape.end());
        const auto weights = static_cast<std::size_t>(
            entry.shape[0] * (entry.shape.size() > 1 ? entry.shape[1] : 1));
        std::vector<float> numbers(weights);
        if (shape.size() == 1 || name.ends_with("mlp.gate.weight")) {
            for (std::size_t i = 0; i < weights; ++i)
                numbers[i] = load_element(reinterpret_cast<const std::byte*>(entry.bytes.data()),
                                          entry.dtype == "F32" ? DType::f32 : DType::bf16,
                                          static_cast<std::int64_t>(i));
            tensors[name] = {shape, 0, bytes_of(numbers)};
        } else {
            const std::string blocks = short_q4_k(weights, random);
            widen_blocks(BlockCode::q4_k, reinterpret_cast<const std::byte*>(blocks.data()),
                         std::ssize(numbers), numbers.data());
            for (const float number : numbers) ASSERT_EQ(to_float(to_bf16(number)), number);
            tensors[name] = {shape, 12, blocks};
            entry.bytes = rounded(numbers);
        }
        wide.tensors.at(name) = {"F32", entry.shape, bytes_of(numbers)};
    }
    narrow.save();
    wide.save();
    const std::vector<float> exact = logits_of_eight(as_f32), bf16 = logits_of_eight(as_bf16);
    const fs::path gguf =
        save(made.config, with_stacked_experts(std::move(tensors), made.config.n_routed_experts));
    const std::vector<float> q4_k = logits_of_eight(gguf);
    EXPECT_EQ(logits_of_two_ranks(gguf), q4_k);
    const double bf16_error = distance(bf16, exact),
                 size = distance(exact, std::vector<float>(exact.size()));
    EXPECT_LT(bf16_error, 0.1 * size);
    EXPECT_LT(distance(q4_k, exact), 1.5 * bf16_error);
}

// A file that llama.cpp's own Python package wrote, against a forward pass in f32 over the numbers
// that this package reads from it (tools/make_gguf_goldens.py).
TEST_F(GgufTest, AnothersFileGivesTheLogitsOfAPlainForwardPass) {
    const std::string folder = std::string(test::source_directory()) + "/tests/model/gguf/";
    const auto golden = MappedFile::open(folder + "tiny.logits");
    ASSERT_TRUE(golden) << golden.error().message;
    constexpr std::size_t kTokens = 8, kVocabulary = 320, kHead = 8 + 4 * kTokens;
    ASSERT_EQ(golden->size(), kHead + 4 * kTokens * kVocabulary);
    std::vector<float> wanted(kTokens * kVocabulary);
    std::memcpy(wanted.data(), golden->bytes().data() + kHead, 4 * wanted.size());
    const std::vector<float> logits = logits_of_eight(folder + "tiny.gguf");
    ASSERT_EQ(logits.size(), wanted.size());
    // Inputs of products are rounded to bf16, by 2⁻⁹ at most: six times on the way through each
    // of two layers, and before the head.
    EXPECT_LT(distance(logits, wanted),
              13 * 0x1p-9 * distance(wanted, std::vector<float>(wanted.size())));
}

TEST_F(GgufTest, APackedFileBesideItGivesTheSameBits) {
    const auto made = model("tiny-v3", DType::bf16);
    const Twins twins =
        write_twins(made, write(made), BlockCode::q4_0, directory_.path() / "packed.gguf");
    const std::vector<float> at_load = logits_of_eight(twins.gguf);
    auto opened = Checkpoint::open(twins.gguf.string());
    ASSERT_TRUE(opened) << opened.error().message;
    const auto checkpoint = std::make_shared<const Checkpoint>(std::move(*opened));
    CpuDevice device(2);
    const auto written = write_packed_weights(checkpoint, device);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(packed_weights_path(*checkpoint).string(),
              twins.gguf.string() + ".packed-panels.espalier");
    const auto packed = PackedWeights::open(*checkpoint);
    ASSERT_TRUE(packed) << packed.error().message;
    ASSERT_NE(*packed, nullptr);
    EXPECT_EQ(logits_of_eight(twins.gguf, {.shelf = *packed}), at_load);
}

TEST_F(GgufTest, WhatTheEngineDoesNotMultiplyIsRefusedByName) {
    const auto made = model("tiny-v3", DType::bf16);
    const fs::path directory = write(made);
    const auto load = [&](const GgufTensors& tensors) -> Expected<void> {
        ESPALIER_ASSIGN_OR_RETURN(Checkpoint opened,
                                  Checkpoint::open(save(made.config, tensors).string()));
        CpuDevice device(1);
        const auto backend = ops::make_cpu_backend(best_cpu_variant());
        return Weights::load(std::make_shared<const Checkpoint>(std::move(opened)), device,
                             *backend)
            .map([](const Weights&) {});
    };
    const GgufTensors good =
        with_stacked_experts(plain_tensors(tensors_in(directory)), made.config.n_routed_experts);
    ASSERT_TRUE(load(good));
    const auto expect = [&](const GgufTensors& tensors, std::initializer_list<const char*> parts) {
        const auto result = load(tensors);
        ASSERT_FALSE(result);
        for (const char* part : parts)
            EXPECT_NE(result.error().message.find(part), std::string::npos)
                << part << " is not in: " << result.error().message;
    };
    GgufTensors tensors = good;
    GgufData& output = tensors.at("model.layers.0.self_attn.o_proj.weight");
    output.type = 10;  // Q2_K
    output.bytes.resize(output.shape[0] * output.shape[1] / 256 * 84);
    expect(tensors, {"model.layers.0.self_attn.o_proj.weight", "Q2_K", "Q8_0"});
    tensors = good;
    tensors["model.layers.0.attn_surprise.weight"] = tensors.at("model.norm.weight");
    expect(tensors, {"blk.0.attn_surprise.weight", "its metadata"});
    tensors = good;
    tensors.erase("model.layers.1.mlp.experts.down_proj.weight");
    expect(tensors, {"model.layers.1.mlp.experts.0.down_proj.weight"});
    tensors = good;
    tensors.at("model.layers.1.mlp.experts.down_proj.weight").shape = {4, 512, 256};
    expect(tensors, {"ffn_down_exps.weight", "4 experts", "expert_count is 8"});
}

}  // namespace
}  // namespace espalier::model
