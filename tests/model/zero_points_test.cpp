// SPDX-License-Identifier: Apache-2.0
// Models with zero points: the same numbers as AWQ and as asymmetric compressed-tensors, in words
// and in bytes, give the same bits, in every number mode; what an AWQ checkpoint lacks is named.
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/quantization.hpp"
#include "model/tiny_model.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using Entry = SafetensorsEditor::Entry;

constexpr std::int64_t kGroup = 32;  // of --dtype awq

std::uint32_t word_of(const Entry& entry, std::int64_t index) {
    std::uint32_t word;
    std::memcpy(&word, entry.bytes.data() + index * 4, 4);
    return word;
}

// Output n of eight in a word of AutoAWQ's.
unsigned awq_code(std::uint32_t word, std::int64_t n) {
    constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    return word >> 4 * (std::find(kOrder, kOrder + 8, n % 8) - kOrder) & 15u;
}

class ZeroPoints : public testing::Test {
  protected:
    fs::path write() {
        auto model = checkpoint::synthetic_preset("tiny-v3").value();
        model.config.num_hidden_layers = 2;
        model.config.num_attention_heads = 2;
        EXPECT_TRUE(checkpoint::store_as("awq", model));
        const fs::path path = directory_.path() / "awq";
        write_model(model, path);
        return path;
    }

    // The model again in the layout of compressed-tensors; bytes: with codes of 8 bits.
    fs::path rewrite(const fs::path& from, bool bytes) {
        const fs::path to = directory_.path() / (bytes ? "bytes" : "words");
        fs::copy(from, to);
        SafetensorsEditor file(to / "model.safetensors");
        const auto before = file.tensors;
        for (const auto& [name, codes] : before) {
            if (!name.ends_with(".qweight")) continue;
            const std::string matrix = name.substr(0, name.rfind('.'));
            const std::int64_t k = codes.shape[0], n = codes.shape[1] * 8, groups = k / kGroup;
            const Entry &zeros = before.at(matrix + ".qzeros"),
                        &scales = before.at(matrix + ".scales");
            const auto code = [&](std::int64_t row, std::int64_t column) {
                return awq_code(word_of(codes, column * (n / 8) + row / 8), row);
            };
            const auto zero = [&](std::int64_t row, std::int64_t group) {
                return awq_code(word_of(zeros, group * (n / 8) + row / 8), row);
            };
            file.put(matrix + ".weight_scale", "F16", {n, groups}, 2);
            for (std::int64_t row = 0; row < n; ++row)
                for (std::int64_t group = 0; group < groups; ++group)
                    std::memcpy(file.tensors[matrix + ".weight_scale"].bytes.data() +
                                    (row * groups + group) * 2,
                                scales.bytes.data() + (group * n + row) * 2, 2);
            for (const char* part : {".qweight", ".qzeros", ".scales"})
                file.tensors.erase(matrix + part);
            if (bytes) {
                file.put(matrix + ".weight", "I8", {n, k}, 1);
                file.put(matrix + ".weight_zero_point", "I8", {n, groups}, 1);
                for (std::int64_t row = 0; row < n; ++row) {
                    for (std::int64_t i = 0; i < k; ++i)
                        file.tensors[matrix + ".weight"]
                            .bytes[static_cast<std::size_t>(row * k + i)] =
                            static_cast<char>(static_cast<int>(code(row, i)) - 8);
                    for (std::int64_t group = 0; group < groups; ++group)
                        file.tensors[matrix + ".weight_zero_point"]
                            .bytes[static_cast<std::size_t>(row * groups + group)] =
                            static_cast<char>(static_cast<int>(zero(row, group)) - 8);
                }
                continue;
            }
            file.put(matrix + ".weight_packed", "I32", {n, k / 8}, 4);
            file.put(matrix + ".weight_zero_point", "I32", {n / 8, groups}, 4);
            file.put(matrix + ".weight_shape", "I32", {2}, 4);
            const std::int32_t shape[2] = {static_cast<std::int32_t>(n),
                                           static_cast<std::int32_t>(k)};
            std::memcpy(file.tensors[matrix + ".weight_shape"].bytes.data(), shape, 8);
            const auto add = [&](const char* part, std::int64_t word, std::int64_t nibble,
                                 unsigned value) {
                std::string& held = file.tensors[matrix + part].bytes;
                char& byte = held[static_cast<std::size_t>(word * 4 + nibble / 2)];
                byte =
                    static_cast<char>(static_cast<unsigned char>(byte) | value << (nibble % 2 * 4));
            };
            for (std::int64_t row = 0; row < n; ++row) {
                for (std::int64_t i = 0; i < k; ++i)
                    add(".weight_packed", (row * k + i) / 8, i % 8, code(row, i));
                for (std::int64_t group = 0; group < groups; ++group)
                    add(".weight_zero_point", row / 8 * groups + group, row % 8, zero(row, group));
            }
        }
        file.save();
        std::ifstream in(from / "config.json");
        const std::string config{std::istreambuf_iterator<char>(in), {}};
        using checkpoint::QuantizedLayout;
        std::ofstream(to / "config.json", std::ios::trunc) << checkpoint::quantized_config_json(
            config, {bytes ? QuantizedLayout::int8 : QuantizedLayout::packed_integers,
                     bytes ? 8 : 4, kGroup, true});
        return to;
    }

    TemporaryDirectory directory_;
};

TEST_F(ZeroPoints, GiveTheSameBitsInEveryLayout) {
    const fs::path awq = write(), words = rewrite(awq, false), bytes = rewrite(awq, true);
    for (const NumberMode mode : {NumberMode::own, NumberMode::int8}) {
        const std::vector<float> logits = logits_of_eight(awq, {.activations = mode});
        EXPECT_EQ(logits_of_eight(words, {.activations = mode}), logits);
        EXPECT_EQ(logits_of_eight(bytes, {.activations = mode}), logits);
    }
}

TEST_F(ZeroPoints, WhatIsMissingIsNamed) {
    const std::string matrix = "model.layers.0.self_attn.o_proj";
    for (const char* part : {".qzeros", ".scales"}) {
        const fs::path path = write();
        SafetensorsEditor file(path / "model.safetensors");
        file.tensors.erase(matrix + part);
        file.save();
        try {
            (void)logits_of_eight(path);
            FAIL() << "loaded";
        } catch (const std::runtime_error& error) {
            EXPECT_NE(std::string(error.what()).find("no tensor '" + matrix + part),
                      std::string::npos)
                << error.what();
        }
        fs::remove_all(path);
    }
}

}  // namespace
}  // namespace espalier::model
