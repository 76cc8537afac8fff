// SPDX-License-Identifier: Apache-2.0
// Many ranks give the bits of one: caches and logits of whole models whose heads, segments and
// experts are dealt to ranks, in every format of weights, and what each rank then holds. Ranks are
// threads of this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "mla/storage.hpp"
#include "model/packed_weights.hpp"
#include "model/shard_bytes.hpp"
#include "model/tiny_model.hpp"
#include "parallel/local_ranks.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> some_tokens(std::size_t count, std::int64_t vocabulary) {
    std::mt19937 generator(5);
    std::vector<std::int32_t> tokens(count);
    for (std::int32_t& token : tokens)
        token = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(vocabulary));
    return tokens;
}

// Latents of all layers and logits.
struct Numbers {
    std::vector<double> cache;
    std::vector<float> logits;
    bool operator==(const Numbers& other) const {
        const auto same = [](const auto& a, const auto& b) {
            return a.size() == b.size() &&
                   std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
        };
        return same(cache, other.cache) && same(logits, other.logits);
    }
};

// A prompt of 261 tokens, of which 256 are decompressed, then tokens one by one.
Numbers run_model(RunningModel& model) {
    constexpr std::int64_t kPrompt = 261, kLength = 265;
    const auto tokens = some_tokens(kLength, model->config().vocab_size);
    auto sequence = Sequence::create(*model, kPrompt, kLength + 1).value();
    Numbers numbers;
    const auto feed = [&](std::int64_t first, std::int64_t count) {
        const auto fed = sequence.feed(*model,
                                       std::span(tokens).subspan(static_cast<std::size_t>(first),
                                                                 static_cast<std::size_t>(count)),
                                       std::min<std::int64_t>(count, 3));
        if (!fed) throw std::runtime_error(fed.error().message);
        const auto logits = copy_logits(fed->logits);
        numbers.logits.insert(numbers.logits.end(), logits.begin(), logits.end());
    };
    feed(0, kPrompt);
    for (std::int64_t at = kPrompt; at < kLength; ++at) feed(at, 1);
    for (std::int64_t layer = 0; layer < model->config().num_hidden_layers; ++layer)
        for (std::int64_t position = 0; position < kLength; position += 3) {
            double slot[mla::kKey];
            mla::read_slot(sequence.storage().target(layer), sequence.slot_of(position), slot);
            numbers.cache.insert(numbers.cache.end(), slot, slot + mla::kKey);
        }
    EXPECT_NE(numbers.logits.at(0), numbers.logits.at(1));
    EXPECT_TRUE(std::ranges::all_of(numbers.logits, [](float x) { return std::isfinite(x); }));
    return numbers;
}

Numbers of_one(const fs::path& model, const LoadOptions& options = {}) {
    RunningModel running(model, cpu_machine(2, best_cpu_variant()), 128, std::nullopt, options);
    return run_model(running);
}

// Calls body(shard, running model) on every rank.
template <typename Body>
void on_ranks(const fs::path& model, int count, const LoadOptions& options, Body&& body) {
    parallel::run_local_ranks(count, [&](parallel::Ranks& ranks) {
        LoadOptions mine = options;
        mine.shard.rank = ranks.rank();
        mine.shard.count = count;
        RunningModel running(model, cpu_machine(1, best_cpu_variant()), 128, std::nullopt, mine,
                             &ranks);
        body(mine.shard, running);
    });
}

void expect_the_bits_of(const Numbers& one, const fs::path& model, int count,
                        const LoadOptions& options = {}) {
    std::mutex mutex;
    on_ranks(model, count, options, [&](const Shard& shard, RunningModel& running) {
        const Numbers here = run_model(running);
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(here == one) << "rank " << shard.rank << " of " << count;
    });
}

struct Kind {
    const char* preset;
    std::int64_t heads;  // 0: the preset's
    std::vector<int> ranks;
    std::vector<const char*> dtypes;
};

// tiny-v2 and tiny-v3: o has four segments, the dense layer two, the shared expert one, on 2 and 4
// ranks. 12 heads have six segments of two, which 4 ranks do not share evenly.
const Kind kKinds[] = {
    {"tiny-v3", 0, {2, 4}, {"f32", "f16", "bf16", "fp8", "int8", "int4", "nvfp4"}},
    {"tiny-v2", 0, {2, 4}, {"f32", "bf16", "fp8", "int4"}},
    {"tiny-v2", 12, {3, 4}, {"bf16", "fp8"}},
    {"tiny-glm", 4, {2, 4}, {"bf16", "fp8", "int4"}},
    {"tiny-glm", 0, {5}, {"bf16", "fp8", "nvfp4"}},
};

class ModelRanks : public testing::Test {
  protected:
    fs::path write(const char* preset, std::int64_t heads, const char* dtype, bool mtp = false) {
        auto model = checkpoint::synthetic_preset(preset).value();
        if (heads > 0) model.config.num_attention_heads = heads;
        model.config.num_hidden_layers = 2;
        if (!mtp) model.config.num_nextn_predict_layers = 0;
        EXPECT_TRUE(checkpoint::store_as(dtype, model));
        const fs::path path = directory_.path() / fmt::format("model{}", models_++);
        write_model(model, path);
        return path;
    }
    TemporaryDirectory directory_;
    int models_ = 0;
};

TEST_F(ModelRanks, GiveTheBitsOfOneInEveryFormat) {
    for (const Kind& kind : kKinds)
        for (const char* dtype : kind.dtypes) {
            const fs::path model = write(kind.preset, kind.heads, dtype);
            const Numbers one = of_one(model);
            for (const int count : kind.ranks) {
                SCOPED_TRACE(fmt::format("{} with {} heads, {}, {} ranks", kind.preset, kind.heads,
                                         dtype, count));
                expect_the_bits_of(one, model, count);
            }
        }
}

TEST_F(ModelRanks, RoundTheirPartsAsOneRoundsTheWhole) {
    const fs::path model = write("tiny-v3", 0, "bf16");
    for (const WeightCode code : {WeightCode::int8, WeightCode::int4}) {
        const Numbers one = of_one(model, {.rounding = code});
        for (const int count : {2, 4}) expect_the_bits_of(one, model, count, {.rounding = code});
    }
    const LoadOptions head{.head_rounding = WeightCode::int8};
    const Numbers one = of_one(model, head);
    for (const int count : {2, 4}) expect_the_bits_of(one, model, count, head);
}

TEST_F(ModelRanks, RoundTheirInputsAsOneDoes) {
    for (const char* dtype : {"int8", "int4"}) {
        const fs::path model = write("tiny-v3", 0, dtype);
        const LoadOptions options{.activations = NumberMode::int8};
        const Numbers one = of_one(model, options);
        EXPECT_FALSE(one == of_one(model)) << dtype;
        for (const int count : {2, 4}) {
            SCOPED_TRACE(fmt::format("{}, {} ranks", dtype, count));
            expect_the_bits_of(one, model, count, options);
        }
    }
}

TEST_F(ModelRanks, DealExpertsInAnyWay) {
    const fs::path model = write("tiny-v3", 0, "bf16");
    const Numbers one = of_one(model);
    std::mt19937 generator(3);
    for (int round = 0; round < 6; ++round) {
        LoadOptions options;
        const int count = round % 2 == 0 ? 2 : 4;
        // Last: one rank has all, the others none.
        for (int expert = 0; expert < 8; ++expert)
            options.shard.expert_owner.push_back(
                round == 5 ? 1
                           : static_cast<std::int32_t>(generator() % static_cast<unsigned>(count)));
        expect_the_bits_of(one, model, count, options);
    }
}

TEST_F(ModelRanks, TakeTheirPartsOfAPackedFile) {
    for (const char* dtype : {"f32", "bf16", "fp8", "int8", "int4", "nvfp4"}) {
        const fs::path model = write("tiny-v3", 0, dtype);
        const Numbers one = of_one(model);
        const auto opened = std::make_shared<const checkpoint::Checkpoint>(
            checkpoint::Checkpoint::open(model.string()).value());
        CpuDevice device(2);
        ASSERT_TRUE(write_packed_weights(opened, device));
        for (const int count : {2, 4}) {
            SCOPED_TRACE(fmt::format("{}, {} ranks", dtype, count));
            LoadOptions options;
            options.shelf = PackedWeights::open(*opened).value();
            ASSERT_NE(options.shelf, nullptr);
            expect_the_bits_of(one, model, count, options);
        }
    }
}

// Bytes of a layer's weights that are dealt, and those that are kept.
struct LayerBytes {
    std::size_t experts = 0, network = 0, attention = 0, kept = 0;
};
LayerBytes bytes_of(const LayerWeights& layer) {
    LayerBytes bytes;
    const AttentionWeights& a = layer.attention;
    bytes.attention =
        a.q.bytes() + a.absorb_key.bytes() + a.up_key.bytes() + a.up_value.bytes() + a.o.bytes();
    bytes.kept = a.q_a.bytes() + a.kv_a.bytes();
    if (layer.dense) bytes.network = layer.dense->gate_up.bytes() + layer.dense->down.bytes();
    if (!layer.moe) return bytes;
    bytes.kept += layer.moe->router.bytes();
    bytes.experts = layer.moe->gate_up.bytes() + layer.moe->down.bytes();
    if (layer.moe->shared)
        bytes.network = layer.moe->shared->gate_up.bytes() + layer.moe->shared->down.bytes();
    return bytes;
}

TEST_F(ModelRanks, HoldTheirShareOfWhatIsDealtAndNoMore) {
    for (const char* dtype : {"f32", "bf16", "fp8", "int8", "int4", "nvfp4"}) {
        const fs::path model = write("tiny-v3", 0, dtype, true);
        const LoadOptions options{.mtp = true};
        RunningModel whole(model, cpu_machine(2, best_cpu_variant()), 128, std::nullopt, options);
        const Weights& all = whole->weights();
        for (const int count : {2, 4}) {
            SCOPED_TRACE(fmt::format("{}, {} ranks", dtype, count));
            std::mutex mutex;
            std::vector<std::size_t> networks(all.layers.size());
            std::size_t heads = 0;
            on_ranks(model, count, options, [&](const Shard& shard, RunningModel& running) {
                const std::lock_guard lock(mutex);
                const auto parts = static_cast<std::size_t>(count);
                const Weights& mine = running->weights();
                heads += mine.head.bytes();
                for (std::size_t layer = 0; layer < all.layers.size(); ++layer) {
                    const LayerBytes one = bytes_of(all.layers[layer]);
                    const LayerBytes part = bytes_of(mine.layers[layer]);
                    EXPECT_EQ(part.attention * parts, one.attention) << "layer " << layer;
                    EXPECT_EQ(part.experts * parts, one.experts) << "layer " << layer;
                    EXPECT_EQ(part.kept, one.kept) << "layer " << layer;
                    networks[layer] += part.network;
                }
                const LayerBytes mtp = bytes_of(mine.mtp.at(0).layer);
                EXPECT_EQ(mtp.experts * parts, bytes_of(all.mtp.at(0).layer).experts);
                EXPECT_EQ(mine.mtp.at(0).eh_proj.bytes(), all.mtp.at(0).eh_proj.bytes());
                const auto listed =
                    shard_bytes(std::make_shared<const checkpoint::Checkpoint>(
                                    checkpoint::Checkpoint::open(model.string()).value()),
                                shard);
                ASSERT_TRUE(listed) << listed.error().message;
                EXPECT_EQ(listed->packed, mine.packed_bytes);
            });
            // Segments are dealt whole: what one rank has more, others have less.
            for (std::size_t layer = 0; layer < all.layers.size(); ++layer)
                EXPECT_EQ(networks[layer], bytes_of(all.layers[layer]).network);
            EXPECT_EQ(heads, all.head.bytes());
        }
    }
}

// A model's files as they would be, without a number in them but the shapes of packed matrices: a
// hole in the file system has no size.
void write_hollow(const checkpoint::SyntheticModel& model, const fs::path& path) {
    constexpr std::size_t kOfFile = 400;
    fs::create_directories(path);
    std::vector<checkpoint::Shard> files;
    std::uint64_t total = 0;
    for (auto& spec : checkpoint::list_tensors(model.config, {.dtype = model.dtype})) {
        if (files.empty() || files.back().tensors.size() == kOfFile) files.emplace_back();
        total += spec.bytes();
        files.back().tensors.push_back(std::move(spec));
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
        files[i].file = checkpoint::shard_name(i, files.size());
        std::ranges::stable_sort(files[i].tensors, std::greater(),
                                 [](const auto& spec) { return checkpoint::bytes_of(spec.type); });
        const fs::path file = path / files[i].file;
        const std::string head = checkpoint::safetensors_head(files[i]);
        ASSERT_TRUE(checkpoint::write_text(file, head));
        std::uint64_t at = head.size();
        std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
        for (const checkpoint::TensorSpec& spec : files[i].tensors) {
            if (spec.role == checkpoint::TensorRole::stored_shape) {
                std::vector<std::byte> values(spec.bytes());
                checkpoint::synthetic_values(spec, 1, 0, spec.elements(), values.data());
                out.seekp(static_cast<std::streamoff>(at));
                out.write(reinterpret_cast<const char*>(values.data()), std::ssize(values));
            }
            at += spec.bytes();
        }
        out.close();
        fs::resize_file(file, at);
    }
    ASSERT_TRUE(checkpoint::write_text(path / "model.safetensors.index.json",
                                       checkpoint::index_json(files, total)));
    ASSERT_TRUE(checkpoint::write_text(path / "config.json",
                                       checkpoint::config_json_of(model.config, model.dtype)));
}

// Eight ranks, each within a GPU of 141 GB: V3 as it is published (FP8, with MTP), K2 with INT4.
TEST_F(ModelRanks, OfPublishedModelsFitTheirGpus) {
    auto v3 = checkpoint::synthetic_preset("v3-slice").value();
    v3.config.num_hidden_layers = 61;
    v3.config.first_k_dense_replace = 3;
    v3.config.num_nextn_predict_layers = 1;
    auto k2 = checkpoint::synthetic_preset("k2-slice").value();
    k2.config.num_hidden_layers = 61;
    ASSERT_TRUE(checkpoint::store_as("int4", k2));
    for (const auto& [name, model, most] :
         {std::tuple("v3", v3, 90e9), std::tuple("k2", k2, 82e9)}) {
        const fs::path path = directory_.path() / name;
        ASSERT_NO_FATAL_FAILURE(write_hollow(model, path));
        auto opened = checkpoint::Checkpoint::open(path.string());
        ASSERT_TRUE(opened) << opened.error().message;
        const auto shared = std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
        for (const int rank : {0, 7}) {
            const auto bytes = shard_bytes(shared, {.rank = rank, .count = 8});
            ASSERT_TRUE(bytes) << bytes.error().message;
            const auto all = static_cast<double>(bytes->stored + bytes->embedding);
            EXPECT_LE(all, most) << name << ", rank " << rank;
            EXPECT_GE(all, 0.9 * most) << name << ", rank " << rank;
            RecordProperty(fmt::format("{}_rank_{}_bytes", name, rank), fmt::format("{:.0f}", all));
        }
    }
}

TEST_F(ModelRanks, AreRefusedWithTheNumbersThatArePossible) {
    auto config = checkpoint::synthetic_preset("glm-flash").value().config;
    const auto refused = check_shard(config, {.rank = 0, .count = 8});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message,
              "tensor_parallel_size: 8 ranks for 20 heads: 1, 2, 4, 5, 10, 20 are possible");
    EXPECT_FALSE(check_shard(config, {.rank = 0, .count = 0}));
    EXPECT_FALSE(check_shard(config, {.rank = 4, .count = 4}));
    EXPECT_FALSE(check_shard(config, {.rank = -1, .count = 4}));
    EXPECT_FALSE(check_shard(config, {.rank = 0, .count = 2, .expert_owner = {0, 1}}));
    EXPECT_FALSE(check_shard(
        config, {.rank = 0, .count = 2, .expert_owner = std::vector<std::int32_t>(64, 2)}));
    EXPECT_TRUE(check_shard(config, {.rank = 9, .count = 10}));
}

TEST_F(ModelRanks, RunOnlyTheWeightsThatAreTheirs) {
    const fs::path model = write("tiny-v2", 0, "bf16");
    EXPECT_THROW(RunningModel(model, cpu_machine(1, best_cpu_variant()), 128, std::nullopt,
                              {.shard = {.rank = 1, .count = 2}}),
                 std::runtime_error);
    EXPECT_THROW(RunningModel(model, cpu_machine(1, best_cpu_variant()), 128, std::nullopt,
                              {.mmap_experts = true, .shard = {.rank = 1, .count = 2}}),
                 std::runtime_error);
    // A rank with another's weights: all ranks end.
    EXPECT_THROW(parallel::run_local_ranks(2,
                                           [&](parallel::Ranks& ranks) {
                                               RunningModel running(
                                                   model, cpu_machine(1, best_cpu_variant()), 128,
                                                   std::nullopt, {.shard = {.rank = 0, .count = 2}},
                                                   &ranks);
                                               run_model(running);
                                           }),
                 std::runtime_error);
}

}  // namespace
}  // namespace espalier::model
