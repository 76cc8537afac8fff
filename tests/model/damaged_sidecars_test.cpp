// SPDX-License-Identifier: Apache-2.0
// Scales and shapes beside quantized weights, damaged at random: a tensor that is gone, elsewhere,
// misshapen or too many is refused by a name; other numbers in it are refused too, or the model
// runs.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/quantization.hpp"
#include "model/tiny_model.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::Quantization;
using checkpoint::QuantizedLayout;

struct Layout {
    const char* name;
    std::optional<Quantization> how;  // none: FP8 in blocks
};
constexpr Layout kLayouts[] = {{"int4", Quantization{QuantizedLayout::packed_integers, 4, 32}},
                               {"int8_rows", Quantization{QuantizedLayout::int8, 8, 0}},
                               {"nvfp4", Quantization{QuantizedLayout::nvfp4, 4, 16}},
                               {"packed_nvfp4", Quantization{QuantizedLayout::packed_nvfp4, 4, 16}},
                               {"fp8", std::nullopt}};

enum class Damage : std::uint8_t { gone, elsewhere, misshapen, too_many, numbers };
constexpr int kDamages = 5;

class DamagedSidecars : public testing::TestWithParam<Layout> {
  protected:
    void SetUp() override {
        auto model = checkpoint::synthetic_preset("tiny-v3").value();
        model.config.num_hidden_layers = 2;
        model.config.num_attention_heads = 2;
        model.config.num_nextn_predict_layers = 0;
        if (GetParam().how) {
            model.config.quantization = *GetParam().how;
        } else {
            model.dtype = DType::e4m3;
            model.config.fp8_block = 128;
        }
        write_model(model, path());
    }
    fs::path path() const { return directory_.path() / "model"; }
    // Message of loading; empty: the model ran.
    std::string message() const {
        try {
            (void)logits_of_eight(path());
            return "";
        } catch (const std::runtime_error& error) {
            return error.what();
        }
    }

    TemporaryDirectory directory_;
};

bool is_sidecar(const std::string& name) {
    return name.find("scale") != name.npos || name.ends_with("weight_shape");
}

std::string matrix_of(const std::string& sidecar) { return sidecar.substr(0, sidecar.rfind('.')); }

class Vandal {
  public:
    Vandal(std::uint32_t seed, SafetensorsEditor& file) : random_(seed), file_(file) {
        for (const auto& [name, entry] : file.tensors)
            if (is_sidecar(name)) sidecars_.push_back(name);
    }
    // The sidecar that it damaged.
    std::string act(Damage damage) {
        std::string name = sidecars_[random_() % sidecars_.size()];
        // Scales of activations, which stay bf16, may be absent.
        while (damage == Damage::gone && name.find(".input_") != name.npos)
            name = sidecars_[random_() % sidecars_.size()];
        SafetensorsEditor::Entry& entry = file_.tensors[name];
        switch (damage) {
            case Damage::gone:
                file_.tensors.erase(name);
                break;
            case Damage::elsewhere:
                file_.tensors["model.layers.1.nowhere" + name.substr(name.rfind('.'))] = entry;
                file_.tensors.erase(name);
                break;
            case Damage::misshapen:
                misshape(entry);
                break;
            case Damage::too_many:
                file_.tensors["model.embed_tokens" + name.substr(name.rfind('.'))] = entry;
                break;
            case Damage::numbers:
                for (int i = 0; i < 4; ++i)
                    entry.bytes[random_() % entry.bytes.size()] =
                        static_cast<char>(random_() % 3 == 0 ? 0xff : random_());
                break;
        }
        return name;
    }

  private:
    // A row or a column more, or a dimension more; the bytes are as many as that needs.
    void misshape(SafetensorsEditor::Entry& entry) {
        if (entry.shape.empty()) entry.shape = {1};
        const std::size_t elements = elements_of(entry);
        const std::size_t width = entry.bytes.size() / elements;
        if (random_() % 3 == 0)
            entry.shape.push_back(2);
        else
            entry.shape[random_() % entry.shape.size()] += 1;
        entry.bytes.resize(elements_of(entry) * width, '\x3c');
    }
    static std::size_t elements_of(const SafetensorsEditor::Entry& entry) {
        std::size_t count = 1;
        for (const std::int64_t size : entry.shape) count *= static_cast<std::size_t>(size);
        return count;
    }

    std::mt19937 random_;
    SafetensorsEditor& file_;
    std::vector<std::string> sidecars_;
};

TEST_P(DamagedSidecars, AreRefusedByNameOrHarmless) {
    const SafetensorsEditor good(path() / "model.safetensors");
    ASSERT_EQ(message(), "");
    for (std::uint32_t round = 0; round < 40; ++round) {
        SafetensorsEditor file = good;
        const auto damage = static_cast<Damage>(round % kDamages);
        const std::string name = Vandal(round, file).act(damage);
        file.save();
        const std::string said = message();
        if (damage == Damage::numbers && said.empty()) continue;
        ASSERT_NE(said, "") << name << ", damage " << round % kDamages;
        const bool named = said.find(matrix_of(name)) != said.npos ||
                           said.find("nowhere") != said.npos ||
                           said.find("embed_tokens") != said.npos;
        EXPECT_TRUE(named) << name << ": " << said;
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DamagedSidecars, testing::ValuesIn(kLayouts),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace espalier::model
