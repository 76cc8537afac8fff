// SPDX-License-Identifier: Apache-2.0
// A model's hash tells configuration, tokenizer and every tensor's bytes apart, and no directory.
#include "checkpoint/model_hash.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "base/thread_pool.hpp"
#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

std::string hash_of(const std::filesystem::path& path) {
    auto opened = Checkpoint::open(path.string());
    EXPECT_TRUE(opened) << opened.error().message;
    const auto hash = model_hash(*opened);
    EXPECT_TRUE(hash) << hash.error().message;
    return *hash;
}

void change_byte(const std::filesystem::path& file, std::streamoff from_end) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const auto place = stream.tellg();
    const char changed = static_cast<char>(stream.get() ^ 1);
    stream.seekp(place);
    stream.put(changed);
}

TEST(ModelHash, TellsModelsApartByWeightsConfigurationAndTokenizer) {
    const TemporaryDirectory directory;
    const auto path = directory.path() / "model";
    const auto preset = synthetic_preset("tiny-v2");
    ASSERT_TRUE(preset);
    ThreadPool pool(1);
    ASSERT_TRUE(write_synthetic(*preset, path, pool));
    const std::string first = hash_of(path), tokenizer = *tokenizer_hash(path);
    EXPECT_EQ(first.size(), 16u);
    EXPECT_EQ(hash_of(path), first);
    std::filesystem::rename(path, directory.path() / "renamed");
    EXPECT_EQ(hash_of(directory.path() / "renamed"), first);
    std::filesystem::rename(directory.path() / "renamed", path);
    change_byte(path / "model.safetensors", 1);
    const std::string weights = hash_of(path);
    EXPECT_NE(weights, first);
    std::ofstream(path / "config.json", std::ios::app) << "\n";
    const std::string configured = hash_of(path);
    EXPECT_NE(configured, weights);
    EXPECT_EQ(*tokenizer_hash(path), tokenizer);
    std::ofstream(path / "tokenizer.json", std::ios::app) << "\n";
    EXPECT_NE(hash_of(path), configured);
    EXPECT_NE(*tokenizer_hash(path), tokenizer);
}

}  // namespace
}  // namespace espalier::checkpoint
