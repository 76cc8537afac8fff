// SPDX-License-Identifier: Apache-2.0
// Weights out of the cache have the bits of weights packed at load; a file that is damaged in any
// byte, cut short or another model's is made again and said to be; processes share a directory.
#include "model/packed_cache.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "checkpoint/safetensors.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

using Opened = std::shared_ptr<const checkpoint::Checkpoint>;

class PackedCacheTest : public testing::Test {
  protected:
    fs::path write(std::uint64_t seed, DType dtype = DType::bf16) {
        auto model = checkpoint::synthetic_preset("tiny-v3").value();
        model.config.num_hidden_layers = 2;
        model.config.num_attention_heads = 2;
        model.dtype = dtype;
        model.seed = seed;
        if (dtype == DType::e4m3) model.config.fp8_block = 128;
        const fs::path path = directory_.path() / fmt::format("model{}", models_++);
        write_model(model, path);
        return path;
    }
    static Opened open(const fs::path& path) {
        auto opened = checkpoint::Checkpoint::open(path.string());
        if (!opened) throw std::runtime_error(opened.error().message);
        return std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
    }
    Expected<std::shared_ptr<PackedWeights>> take(const fs::path& model,
                                                  bool mmap_experts = false) {
        CpuDevice device(2);
        return cache().take(open(model), device,
                            {.mmap_experts = mmap_experts,
                             .say = [this](const std::string& what) { said_ += what + "\n"; }});
    }
    std::vector<float> logits(const fs::path& model, bool mmap_experts = false) {
        auto packed = take(model, mmap_experts);
        if (!packed) throw std::runtime_error(packed.error().message);
        return logits_of_eight(model, {.shelf = *packed, .mmap_experts = mmap_experts});
    }
    PackedCache cache() const { return PackedCache(kept_); }
    fs::path file_of(const fs::path& model) const { return cache().file_of(*open(model)); }
    std::size_t files() const {
        std::size_t count = 0;
        for (const auto& entry : fs::directory_iterator(kept_))
            count += entry.path().filename() != "lock";
        return count;
    }
    static std::string bytes_of_file(const fs::path& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    // By rename: the file may be mapped.
    static void put(const fs::path& path, const std::string& bytes) {
        std::ofstream(path.string() + "~", std::ios::binary) << bytes;
        fs::rename(path.string() + "~", path);
    }

    TemporaryDirectory directory_;
    fs::path kept_ = directory_.path() / "cache" / "weights";
    std::string said_;
    int models_ = 0;
};

TEST_F(PackedCacheTest, TheFirstStartPacksAndLaterOnesMap) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
        const fs::path model = write(1, dtype);
        const std::vector<float> at_load = logits_of_eight(model);
        EXPECT_EQ(logits(model), at_load);
        EXPECT_NE(said_.find("packed the weights once, in "), std::string::npos) << said_;
        EXPECT_NE(said_.find(file_of(model).string()), std::string::npos) << said_;
        said_.clear();
        EXPECT_EQ(logits(model), at_load);
        EXPECT_EQ(logits(model, true), at_load);
        EXPECT_EQ(said_, "");
    }
    EXPECT_EQ(files(), 3u);
}

TEST_F(PackedCacheTest, AFileIsForTheCheckpointAsItLies) {
    const fs::path model = write(1), other = write(2);
    EXPECT_NE(file_of(model), file_of(other));
    const fs::path before = file_of(model), tensors = model / "model.safetensors";
    // One number in between the fingerprint's samples.
    std::string bytes = bytes_of_file(tensors);
    const auto time = fs::last_write_time(tensors);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    put(tensors, bytes);
    fs::last_write_time(tensors, time + std::chrono::nanoseconds(1000));
    EXPECT_NE(file_of(model), before);
}

// Every byte counts, of the data too; what cannot be told from a sound file is one.
TEST_F(PackedCacheTest, DamagedFilesAreMadeAgain) {
    const fs::path model = write(1), other = write(2);
    const std::vector<float> at_load = logits_of_eight(model);
    ASSERT_TRUE(take(model));
    ASSERT_TRUE(take(other));
    const fs::path path = file_of(model);
    const std::string good = bytes_of_file(path);
    const auto again = [&](const std::string& bytes, const std::string& why) {
        put(path, bytes);
        said_.clear();
        ASSERT_TRUE(take(model)) << why;
        EXPECT_NE(said_.find(path.string()), std::string::npos) << why << said_;
        EXPECT_NE(said_.find("; packed again\n"), std::string::npos) << why << said_;
        EXPECT_EQ(std::count(said_.begin(), said_.end(), '\n'), 2) << said_;
        EXPECT_TRUE(bytes_of_file(path) == good) << why;
    };
    again("", "empty");
    again("a text of another program", "foreign");
    again(bytes_of_file(file_of(other)), "another model's");
    const std::string version = fmt::format("\nversion {}\n", linalg::kPanelsVersion);
    std::string changed = good;
    changed.replace(changed.find(version), version.size(), "\nversion 0\n");
    again(changed, "version");
    std::mt19937_64 random(3);
    for (int round = 0; round < 40; ++round) {
        changed = good;
        if (round % 8 == 7)
            changed.resize(random() % good.size());
        else
            changed[random() % good.size()] ^= static_cast<char>(1 << random() % 8);
        again(changed, fmt::format("round {}", round));
    }
    EXPECT_EQ(logits(model), at_load);
}

// A whole page of zeros is what a crash leaves of a file that was not written out.
TEST_F(PackedCacheTest, LostPagesAreFoundButThoseOfExpertsOnDisk) {
    const fs::path model = write(1);
    ASSERT_TRUE(take(model));
    const fs::path path = file_of(model);
    const std::string good = bytes_of_file(path);
    const auto section = [&](const std::string& name) {
        const auto packed = checkpoint::open_safetensors(path);
        return packed.value().tensors().find(name)->second.begin;
    };
    const auto lose = [&](const std::string& name) {
        std::string bytes = good;
        bytes.replace(section(name), 4096, 4096, '\0');
        EXPECT_TRUE(bytes != good);
        put(path, bytes);
        said_.clear();
    };
    const std::string expert = "model.layers.1.mlp.experts.0.gate_proj";
    lose(expert);
    ASSERT_TRUE(take(model, true));
    EXPECT_EQ(said_, "");
    ASSERT_TRUE(take(model));
    EXPECT_NE(said_.find("section '" + expert + "' is damaged; packed again"), std::string::npos)
        << said_;
    lose("model.layers.1.self_attn.o_proj");
    ASSERT_TRUE(take(model, true));
    EXPECT_NE(said_.find("packed again"), std::string::npos) << said_;
}

TEST_F(PackedCacheTest, ADirectoryThatCannotBeMadeIsAnError) {
    std::ofstream(directory_.path() / "cache") << "a file";
    const auto packed = take(write(1));
    ASSERT_FALSE(packed);
    EXPECT_NE(packed.error().message.find(kept_.string()), std::string::npos)
        << packed.error().message;
}

TEST_F(PackedCacheTest, KeepsAFewFilesAndThoseUsedLast) {
    std::vector<fs::path> models;
    for (std::uint64_t seed = 0; seed < PackedCache::kMostFiles; ++seed) {
        models.push_back(write(seed));
        ASSERT_TRUE(take(models.back()));
    }
    const auto hours_ago = [&](std::size_t model, int hours) {
        fs::last_write_time(file_of(models[model]),
                            fs::file_time_type::clock::now() - std::chrono::hours(hours));
    };
    for (std::size_t i = 0; i < models.size(); ++i) hours_ago(i, 10 - static_cast<int>(i));
    ASSERT_TRUE(take(models[0]));  // used: the second is the oldest now
    const fs::path part = file_of(models[3]).string() + ".77.part";
    std::ofstream(part) << "left by a process that was killed";
    std::ofstream(kept_ / "notes.txt") << "not ours";
    models.push_back(write(99));
    ASSERT_TRUE(take(models.back()));
    EXPECT_TRUE(fs::exists(file_of(models[0])));
    EXPECT_FALSE(fs::exists(file_of(models[1])));
    EXPECT_TRUE(fs::exists(file_of(models[2])));
    EXPECT_TRUE(fs::exists(kept_ / "notes.txt"));
    EXPECT_FALSE(fs::exists(part));
    EXPECT_EQ(files(), PackedCache::kMostFiles + 1);
}

// Threads stand for processes: each opens the lock for itself.
TEST_F(PackedCacheTest, OneOfManyPacks) {
    const fs::path model = write(1);
    std::atomic<int> packed = 0, failed = 0;
    std::vector<std::thread> starts;
    for (int i = 0; i < 6; ++i)
        starts.emplace_back([&] {
            CpuDevice device(1);
            const auto taken =
                cache().take(open(model), device, {.say = [&](const std::string& what) {
                                 packed += what.starts_with("packed the weights once");
                             }});
            failed += !taken;
        });
    for (std::thread& start : starts) start.join();
    EXPECT_EQ(packed, 1);
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(files(), 1u);
    EXPECT_EQ(logits(model), logits_of_eight(model));
}

}  // namespace
}  // namespace espalier::model
