// SPDX-License-Identifier: Apache-2.0
// A model rounded at load and one that quantize wrote are the same model, bit for bit; a run that
// was cut short is taken up.
#include "model/quantize.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "checkpoint/quantization.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

std::string bytes_of_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

std::map<std::string, std::string> files_of(const fs::path& directory) {
    std::map<std::string, std::string> files;
    for (const auto& item : fs::directory_iterator(directory))
        files[item.path().filename().string()] = bytes_of_file(item.path());
    return files;
}

class QuantizeTest : public testing::Test {
  protected:
    fs::path write(DType dtype, checkpoint::Wrapper wrapper = checkpoint::Wrapper::none,
                   bool tied = false) {
        auto model = checkpoint::synthetic_preset("tiny-v3").value();
        model.config.num_hidden_layers = 2;
        model.config.num_attention_heads = 2;
        model.dtype = dtype;
        model.config.tie_word_embeddings = tied;
        model.config.wrapper = wrapper;
        if (wrapper != checkpoint::Wrapper::none)
            model.config.architecture = checkpoint::Architecture::kimi_k2;
        if (dtype == DType::e4m3) model.config.fp8_block = 128;
        const fs::path path = directory_.path() / "source";
        fs::remove_all(path);
        write_model(model, path);
        return path;
    }
    Expected<void> run(const fs::path& from, const fs::path& to, const QuantizeOptions& options) {
        ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint source,
                                  checkpoint::Checkpoint::open(from.string()));
        return quantize(source, to, pool_, options);
    }
    fs::path fresh() { return directory_.path() / fmt::format("out{}", outputs_++); }

    TemporaryDirectory directory_;
    ThreadPool pool_{2};
    int outputs_ = 0;
};

TEST_F(QuantizeTest, FilesGiveTheBitsOfRoundingAtLoad) {
    for (const DType dtype : {DType::bf16, DType::e4m3})
        for (const WeightCode code : {WeightCode::int8, WeightCode::int4}) {
            SCOPED_TRACE(fmt::format("{} to {}", name_of(dtype), name_of(code)));
            const fs::path source = write(dtype), out = fresh();
            const auto made = run(source, out, {.code = code});
            ASSERT_TRUE(made) << made.error().message;
            const auto opened = checkpoint::Checkpoint::open(out.string());
            ASSERT_TRUE(opened) << opened.error().message;
            EXPECT_EQ(opened->config().quantization.bits, code == WeightCode::int8 ? 8 : 4);
            const std::vector<float> from_files = logits_of_eight(out);
            const std::vector<float> at_load = logits_of_eight(source, {.rounding = code});
            ASSERT_EQ(std::memcmp(from_files.data(), at_load.data(), at_load.size() * 4), 0);
            EXPECT_NE(logits_of_eight(source), at_load);
        }
}

// A tied embedding keeps its numbers: rounding it twice would be seen in the first layer.
TEST_F(QuantizeTest, HeadsBecomeInt8InFilesAsAtLoad) {
    for (const bool tied : {false, true})
        for (const WeightCode code : {WeightCode::int8, WeightCode::int4}) {
            SCOPED_TRACE(fmt::format("{}, tied: {}", name_of(code), tied));
            const fs::path source = write(DType::bf16, checkpoint::Wrapper::none, tied);
            const fs::path out = fresh();
            const auto made = run(source, out, {.code = code, .head_int8 = true});
            ASSERT_TRUE(made) << made.error().message;
            const auto opened = checkpoint::Checkpoint::open(out.string());
            ASSERT_TRUE(opened) << opened.error().message;
            EXPECT_FALSE(opened->config().tie_word_embeddings);
            EXPECT_EQ(opened->stored("lm_head.weight")->type, checkpoint::StoredType::i8);
            EXPECT_EQ(opened->stored("model.embed_tokens.weight")->bytes.size(),
                      checkpoint::Checkpoint::open(source.string())
                          ->stored("model.embed_tokens.weight")
                          ->bytes.size());
            const std::vector<float> from_files = logits_of_eight(out);
            const LoadOptions options{.rounding = code, .head_rounding = WeightCode::int8};
            EXPECT_EQ(from_files, logits_of_eight(source, options));
            EXPECT_NE(from_files, logits_of_eight(source, {.rounding = code}));
            EXPECT_NE(logits_of_eight(source),
                      logits_of_eight(source, {.head_rounding = WeightCode::int8}));
        }
}

TEST_F(QuantizeTest, NestedModelsKeepTheirNames) {
    const fs::path source = write(DType::bf16, checkpoint::Wrapper::kimi_k25), out = fresh();
    const auto made = run(source, out, {});
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(logits_of_eight(out), logits_of_eight(source, {.rounding = WeightCode::int4}));
}

TEST_F(QuantizeTest, TakesUpWhatWasCutShort) {
    const fs::path source = write(DType::bf16), whole = fresh(), cut = fresh();
    QuantizeOptions options{.code = WeightCode::int4, .shard_limit_bytes = 100'000};
    ASSERT_TRUE(run(source, whole, options));
    // Stops where the progress is asked for: after a few shards, in the middle of one.
    struct Stop {};
    options.progress = [](std::uint64_t done, std::uint64_t total) {
        if (done > total / 2) throw Stop{};
    };
    EXPECT_THROW((void)run(source, cut, options), Stop);
    EXPECT_FALSE(fs::exists(cut / "config.json"));
    EXPECT_GT(files_of(cut).size(), 2u);
    // Another command does not go on with it.
    const auto other = run(source, cut, {.code = WeightCode::int8, .shard_limit_bytes = 100'000});
    ASSERT_FALSE(other);
    EXPECT_NE(other.error().message.find("another model: int4 of"), std::string::npos)
        << other.error().message;
    options.progress = {};
    const auto resumed = run(source, cut, options);
    ASSERT_TRUE(resumed) << resumed.error().message;
    EXPECT_EQ(files_of(cut), files_of(whole));
}

TEST_F(QuantizeTest, RefusesWhatItCannotRound) {
    const fs::path wide = write(DType::f32), out = fresh();
    auto made = run(wide, out, {});
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message.find("is f32: BF16 and F8_E4M3"), std::string::npos);
    EXPECT_FALSE(fs::exists(out));
    EXPECT_THROW(logits_of_eight(wide, {.rounding = WeightCode::int4}), std::runtime_error);
    EXPECT_THROW(logits_of_eight(wide, {.head_rounding = WeightCode::int8}), std::runtime_error);
    const fs::path source = write(DType::bf16);
    ASSERT_TRUE(run(source, out, {}));
    made = run(out, fresh(), {});
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message.find("quantized already"), std::string::npos);
    made = run(source, out, {});
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message.find("not empty"), std::string::npos);
}

// At load and into files: the matrix is named, and no config.json makes a model of the files.
TEST_F(QuantizeTest, RefusesWeightsThatAreNoNumbers) {
    const std::string name = "model.layers.1.self_attn.o_proj.weight";
    for (const DType dtype : {DType::bf16, DType::e4m3}) {
        const fs::path source = write(dtype), out = fresh();
        {
            const auto opened = checkpoint::Checkpoint::open(source.string());
            ASSERT_TRUE(opened);
            const checkpoint::Tensor tensor = *opened->stored(name);
            const auto place = tensor.bytes.data() - tensor.file->file().bytes().data();
            std::fstream file(tensor.file->file().path(),
                              std::ios::binary | std::ios::in | std::ios::out);
            file.seekp(place + 100).write("\x7f\x7f\x7f\x7f", 4);                    // e4m3: NaN
            if (dtype == DType::bf16) file.seekp(place + 100).write("\x80\x7f", 2);  // infinity
        }
        const auto made = run(source, out, {});
        ASSERT_FALSE(made);
        EXPECT_NE(made.error().message.find("o_proj': weights ["), std::string::npos);
        EXPECT_NE(made.error().message.find("with NaN or infinity"), std::string::npos)
            << made.error().message;
        EXPECT_FALSE(fs::exists(out / "config.json"));
        try {
            (void)logits_of_eight(source, {.rounding = WeightCode::int8});
            FAIL() << "loaded";
        } catch (const std::runtime_error& error) {
            EXPECT_NE(std::string(error.what()).find("o_proj.weight: weights ["), std::string::npos)
                << error.what();
        }
    }
}

}  // namespace
}  // namespace espalier::model
