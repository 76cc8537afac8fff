// SPDX-License-Identifier: Apache-2.0
// Weights mapped from a packed file have the bits of weights packed at load, whatever their format;
// nothing is packed again; and a file that is damaged, cut short or of another model is refused by
// name.
#include "model/packed_weights.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "model/quantize.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

struct Kind {
    const char* name;
    DType dtype = DType::bf16;
    std::optional<WeightCode> rounded = {};
};
constexpr Kind kKinds[] = {{"f32", DType::f32},
                           {"bf16", DType::bf16},
                           {"fp8", DType::e4m3},
                           {"int8", DType::bf16, WeightCode::int8},
                           {"int4", DType::bf16, WeightCode::int4}};

class PackedWeightsTest : public testing::Test {
  protected:
    fs::path write(const Kind& kind, const char* preset = "tiny-v3") {
        auto model = checkpoint::synthetic_preset(preset).value();
        model.config.num_hidden_layers = 3;
        model.config.num_attention_heads = 2;
        model.dtype = kind.dtype;
        if (kind.dtype == DType::e4m3) model.config.fp8_block = 128;
        const fs::path source = directory_.path() / fmt::format("{}{}", kind.name, models_++);
        write_model(model, source);
        if (!kind.rounded) return source;
        const fs::path out = source.string() + "-rounded";
        const auto opened = checkpoint::Checkpoint::open(source.string());
        EXPECT_TRUE(opened);
        const auto made = quantize(*opened, out, pool_, {.code = *kind.rounded});
        EXPECT_TRUE(made) << made.error().message;
        return out;
    }
    static std::shared_ptr<const checkpoint::Checkpoint> open(const fs::path& path) {
        auto opened = checkpoint::Checkpoint::open(path.string());
        if (!opened) throw std::runtime_error(opened.error().message);
        return std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
    }
    static void pack(const fs::path& path) {
        CpuDevice device(2);
        const auto written = write_packed_weights(open(path), device);
        ASSERT_TRUE(written) << written.error().message;
    }
    static std::shared_ptr<PackedWeights> packed(const fs::path& path) {
        auto found = PackedWeights::open(*open(path));
        if (!found) throw std::runtime_error(found.error().message);
        return *found;
    }
    static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    }
    static std::string bytes_of_file(const fs::path& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    static void put(const fs::path& path, const std::string& bytes) {
        std::ofstream(path, std::ios::binary) << bytes;
    }
    static std::string message_of(const fs::path& path) {
        const auto found = PackedWeights::open(*open(path));
        return found ? "" : found.error().message;
    }

    TemporaryDirectory directory_;
    ThreadPool pool_{2};
    int models_ = 0;
};

TEST_F(PackedWeightsTest, MappedWeightsHaveTheBitsOfPackedOnes) {
    for (const Kind& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const fs::path model = write(kind);
        const std::vector<float> at_load = logits_of_eight(model);
        pack(model);
        EXPECT_TRUE(same_bits(logits_of_eight(model, {.shelf = packed(model)}), at_load));
        EXPECT_TRUE(same_bits(
            logits_of_eight(model, {.shelf = packed(model), .mmap_experts = true}), at_load));
    }
    const fs::path glm = write({"int4", DType::bf16, WeightCode::int4}, "tiny-glm");
    const std::vector<float> at_load = logits_of_eight(glm);
    pack(glm);
    EXPECT_TRUE(same_bits(logits_of_eight(glm, {.mtp = true, .shelf = packed(glm)}), at_load));
}

TEST_F(PackedWeightsTest, ASecondStartPacksNothingAndReadsOnlyVectors) {
    const fs::path model = write(kKinds[4]);
    pack(model);
    CpuDevice device(1);
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    std::uint64_t read = 0;
    const Progress progress = [&](std::uint64_t done, std::uint64_t total) {
        if (done != total) read = done;
    };
    const auto first =
        Weights::load(open(model), device, *backend, {.mtp = true, .progress = progress});
    ASSERT_TRUE(first);
    EXPECT_GT(first->packed_bytes, read / 2);
    EXPECT_GT(read, open(model)->total_bytes() / 4);
    read = 0;
    const auto second = Weights::load(open(model), device, *backend,
                                      {.mtp = true, .shelf = packed(model), .progress = progress});
    ASSERT_TRUE(second);
    EXPECT_EQ(second->packed_bytes, 0u);
    std::uint64_t vectors = 0;
    const auto opened = open(model);
    for (const auto& file : opened->files())
        for (const auto& [name, entry] : file->tensors())
            if (entry.shape.size() == 1 && !name.ends_with("weight_shape"))
                vectors += entry.end - entry.begin;
    EXPECT_EQ(read, vectors);
}

TEST_F(PackedWeightsTest, ExpertsThatAreNeededAreCounted) {
    const fs::path model = write(kKinds[4]);
    pack(model);
    CpuDevice device(1);
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    const auto shelf = packed(model);
    const auto weights =
        Weights::load(open(model), device, *backend, {.shelf = shelf, .mmap_experts = true});
    ASSERT_TRUE(weights);
    const MoeWeights& moe = *weights->layers.back().moe;
    std::vector<std::int32_t> indptr(static_cast<std::size_t>(moe.gate_up.view().count) + 1, 0);
    moe.mapped->read_ahead(indptr.data());
    EXPECT_EQ(weights->expert_reads->needed, 0);
    EXPECT_EQ(weights->expert_reads->hit_rate(), 1.0);
    // Expert 1 alone has tokens: whole pages that hold its codes and scales, in both stacks.
    std::fill(indptr.begin() + 2, indptr.end(), 3);
    moe.mapped->read_ahead(indptr.data());
    std::int64_t least = 0;
    for (const Weight* stack : {&moe.gate_up, &moe.down})
        least += stack->view().matrix_bytes + stack->view().scale_bytes;
    EXPECT_GE(weights->expert_reads->needed, least);
    EXPECT_LE(weights->expert_reads->needed, least + 4 * 2 * 4096);
    // Written a moment ago, so in memory (or, where the system does not say, not counted so).
    EXPECT_GE(weights->expert_reads->hit_rate(), 0.0);
    EXPECT_LE(weights->expert_reads->hit_rate(), 1.0);
}

TEST_F(PackedWeightsTest, WithoutAFileThereIsNone) {
    const fs::path model = write(kKinds[1]);
    EXPECT_EQ(packed(model), nullptr);
}

TEST_F(PackedWeightsTest, RefusesFilesOfOthersByName) {
    const fs::path model = write(kKinds[1]), other = write(kKinds[4]);
    pack(model);
    pack(other);
    const fs::path path = packed_weights_path(*open(model));
    const std::string good = bytes_of_file(path);
    EXPECT_EQ(message_of(model), "");
    fs::copy_file(packed_weights_path(*open(other)), path, fs::copy_options::overwrite_existing);
    EXPECT_NE(message_of(model).find("packed from the weights"), std::string::npos);

    const auto changed = [&](std::string_view from, std::string_view to) {
        std::string bytes = good;
        const std::size_t at = bytes.find(from);
        EXPECT_NE(at, std::string::npos);
        put(path, bytes.replace(at, from.size(), to));
        return message_of(model);
    };
    EXPECT_NE(changed("\nversion 1\n", "\nversion 7\n").find("version '7' of its layout"),
              std::string::npos);
    EXPECT_NE(changed("\nlayout panels\n", "\nlayout panelz\n").find("layout 'panelz'"),
              std::string::npos);
    EXPECT_NE(changed("espalier packed weights", "ESPALIER packed weights").find("no packed"),
              std::string::npos);
    EXPECT_NE(changed("espalier.packed", "espalier.pucked").find("no packed"), std::string::npos);
    EXPECT_NE(changed("\"U8\"", "\"I8\"").find("is I8 at byte"), std::string::npos);
    // Names are held by the header's hash: two weights of one size cannot change places.
    EXPECT_NE(changed("layers.0.self_attn.o_proj", "layers.9.self_attn.o_proj")
                  .find("its header is damaged"),
              std::string::npos);
    put(path, good.substr(0, good.size() - 1));
    EXPECT_NE(message_of(model).find("packed-panels.espalier"), std::string::npos);
    put(path, "");
    EXPECT_NE(message_of(model).find("packed-panels.espalier"), std::string::npos);
}

// A changed byte of header or identity is refused; of the data it may give other numbers and
// nothing worse.
TEST_F(PackedWeightsTest, DamagedFilesAreRefusedOrHarmless) {
    const fs::path model = write(kKinds[4]);
    pack(model);
    const fs::path path = packed_weights_path(*open(model));
    const std::string good = bytes_of_file(path);
    const std::size_t data = good.find("espalier packed weights") + 4096;
    std::mt19937 random(7);
    int refused = 0;
    for (int round = 0; round < 60; ++round) {
        std::string bytes = good;
        const bool head = round % 2 == 0;
        if (round % 10 == 9) {
            bytes.resize(random() % good.size());
        } else {
            // Text and its end; what pads the identity is zeros that have to be zeros.
            const std::size_t at = head ? random() % data : data + random() % (good.size() - data);
            bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1 + random() % 255));
        }
        put(path, bytes);
        const std::string message = message_of(model);
        const bool expected = head || round % 10 == 9;
        EXPECT_EQ(message.empty(), !expected) << round << ": " << message;
        if (!message.empty()) {
            ++refused;
            EXPECT_NE(message.find("packed-panels.espalier"), std::string::npos) << message;
            continue;
        }
        (void)logits_of_eight(model, {.shelf = packed(model), .mmap_experts = true});
    }
    EXPECT_GE(refused, 30);
}

TEST_F(PackedWeightsTest, SectionsOfAnotherSizeAreRefused) {
    const fs::path model = write(kKinds[1]);
    pack(model);
    const auto shelf = packed(model);
    const std::int64_t hidden = open(model)->config().hidden_size;
    const linalg::WeightView shape{
        .format = {.code = WeightCode::bf16}, .count = 1, .n = std::int64_t{1} << 40, .k = hidden};
    const auto found = shelf->take("model.layers.0.self_attn.o_proj", shape);
    ASSERT_FALSE(found);
    EXPECT_NE(found.error().message.find("section 'model.layers.0.self_attn.o_proj' has"),
              std::string::npos)
        << found.error().message;
    linalg::WeightView huge = shape;
    huge.k = std::int64_t{1} << 40;
    EXPECT_FALSE(shelf->take("model.layers.0.self_attn.o_proj", huge));
    const auto missing = shelf->take("model.layers.77.self_attn.o_proj", shape);
    ASSERT_FALSE(missing);
    EXPECT_NE(missing.error().message.find("no section"), std::string::npos);
}

}  // namespace
}  // namespace espalier::model
