// SPDX-License-Identifier: Apache-2.0
// The rules that make it exact, on whole models: bits of cache and logits do not depend on
// chunking, threads, what else is in the batch, padding, or on a token being a node of a tree.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "batch/batch_builder.hpp"
#include "mla/storage.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

#ifdef ESPALIER_LONG_RUN
constexpr bool kLongRun = true;
#else
constexpr bool kLongRun = false;
#endif

struct Case {
    std::string preset;
    DType dtype;
    std::optional<mla::KvFormat> kv_format = std::nullopt;
    checkpoint::Quantization quantization = {};
};

// Name of a case in the names of tests.
void PrintTo(const Case& chosen, std::ostream* out) {
    *out << chosen.preset << " " << name_of(chosen.dtype);
    if (chosen.kv_format) *out << " " << mla::name_of(*chosen.kv_format);
    if (chosen.quantization.bits > 0)
        *out << " " << chosen.quantization.bits << " bits by " << chosen.quantization.group;
}

std::vector<std::int32_t> random_tokens(std::size_t count, std::int64_t vocabulary, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<std::int32_t> tokens(count);
    for (std::int32_t& token : tokens)
        token = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(vocabulary));
    return tokens;
}

class ModelInvariance : public testing::TestWithParam<Case> {
  protected:
    void SetUp() override {
        auto preset = checkpoint::synthetic_preset(GetParam().preset);
        ASSERT_TRUE(preset);
        preset->dtype = GetParam().dtype;
        preset->config.quantization = GetParam().quantization;
        preset->config.fp8_block =
            GetParam().dtype == DType::e4m3 ? std::optional<std::int64_t>(128) : std::nullopt;
        if (!kLongRun) {
            // Two layers (one dense, one of experts) and two heads show what more would, in a third
            // of the time.
            preset->config.num_hidden_layers = 2;
            preset->config.num_attention_heads = 2;
        }
        vocabulary_ = preset->config.vocab_size;
        write_model(*preset, directory_.path() / "model");
    }
    RunningModel load(int threads) const {
        return RunningModel(directory_.path() / "model", threads, best_cpu_variant(), 128,
                            GetParam().kv_format);
    }
    std::vector<std::int32_t> tokens(std::size_t count, unsigned seed) const {
        return random_tokens(count, vocabulary_, seed);
    }

    TemporaryDirectory directory_;
    std::int64_t vocabulary_ = 0;
};

// The numbers of positions [0, length) in every layer, exactly.
std::vector<double> cached_numbers(Sequence& sequence, std::int64_t layers, std::int64_t length) {
    std::vector<double> numbers(static_cast<std::size_t>(layers * length * mla::kKey));
    double* next = numbers.data();
    for (std::int64_t layer = 0; layer < layers; ++layer)
        for (std::int64_t position = 0; position < length; ++position, next += mla::kKey)
            mla::read_slot(sequence.storage().target(layer), sequence.slot_of(position), next);
    return numbers;
}

struct Outcome {
    std::vector<double> cache;
    std::vector<float> logits;
    bool operator==(const Outcome& other) const {
        return cache == other.cache && logits.size() == other.logits.size() &&
               std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
    }
};

Outcome run_prompt(RunningModel& model, const std::vector<std::int32_t>& prompt,
                   std::int64_t chunk) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    auto sequence = Sequence::create(*model, length, length + 64);
    EXPECT_TRUE(sequence);
    const auto fed = sequence->feed(*model, prompt, true, chunk);
    EXPECT_TRUE(fed) << fed.error().message;
    return {cached_numbers(*sequence, model->config().num_hidden_layers, length),
            copy_logits(fed->logits)};
}

TEST_P(ModelInvariance, ChunksAndThreadsLeaveTheSameBits) {
    // 330 tokens: positions below 320 are decompressed, the rest absorbed.
    const auto prompt = tokens(330, 1);
    RunningModel first = load(1);
    const Outcome expected = run_prompt(first, prompt, 2048);
    EXPECT_NE(expected.logits[0], expected.logits[1]);
    for (const int threads : {1, 2, 3}) {
        RunningModel model = load(threads);
        for (const std::int64_t chunk : {1, 7, 64, 2048}) {
            // One token at a time up-projects the whole segment for each: all thread counts take it
            // in the long run.
            if (chunk == 1 && threads != 3 && !kLongRun) continue;
            EXPECT_TRUE(run_prompt(model, prompt, chunk) == expected)
                << threads << " threads, chunks of " << chunk;
        }
    }
}

// A batch of rows of many kinds over one storage: each row's logits equal those of the row alone.
struct Request {
    std::vector<std::int32_t> history;  // already in the cache
    std::vector<std::int32_t> window;
    std::vector<std::int32_t> pages;
};

constexpr batch::StepCapacity kPadded{.absorbed_tokens = 61,
                                      .decompressed_tokens = 137,
                                      .absorbed_rows = 11,
                                      .decompressed_rows = 3,
                                      .gather = 9,
                                      .max_q_len = 140,
                                      .max_kv_len = 300,
                                      .table_rows = 9,
                                      .block_stride = 5};

batch::RowSpec row_of(const Request& request) {
    batch::RowSpec row;
    row.tokens = request.window;
    row.block_table = request.pages;
    row.first_slot = static_cast<std::int32_t>(request.history.size());
    row.gather = 1;
    return row;
}

std::vector<std::vector<float>> run_rows(RunningModel& model, const std::vector<Request>& requests,
                                         const std::vector<std::size_t>& chosen,
                                         cache::KvStorage& storage, bool padded = false) {
    // Sparse attention decompresses no token that sees more keys than are chosen.
    const bool sparse = model->config().indexer.has_value();
    batch::BatchBuilder builder(kTestCapacity);
    for (const std::size_t index : chosen) {
        batch::RowSpec row = row_of(requests[index]);
        row.table_row = static_cast<std::int32_t>(index);
        if (requests[index].window.size() > 100 && !sparse) row.form = batch::Form::decompressed;
        EXPECT_TRUE(builder.add(row));
    }
    batch::StepCapacity capacity = kPadded;
    if (sparse) capacity.absorbed_tokens += capacity.decompressed_tokens;
    const batch::HostBatch batch = padded ? builder.finish(capacity).value() : builder.finish();
    const auto computed = model->forward(model.upload(batch), storage);
    EXPECT_TRUE(computed) << computed.error().message;
    const Matrix& logits = computed->logits;
    std::vector<std::vector<float>> result;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const float* row = logits.row<float>(static_cast<std::int64_t>(i));
        result.emplace_back(row, row + logits.cols);
    }
    return result;
}

TEST_P(ModelInvariance, RowsTogetherEqualRowsAlone) {
    RunningModel model = load(2);
    auto storage = cache::KvStorage::create(model->device(), model->kv_layout(), 32);
    ASSERT_TRUE(storage);
    std::vector<Request> requests;
    std::int32_t next_page = 1;
    for (const auto& [history, window] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, 5}, {63, 1}, {64, 1}, {100, 4}, {130, 1}, {0, 130}, {17, 33}, {1, 1}}) {
        Request request;
        request.history = tokens(history, static_cast<unsigned>(history + 10));
        request.window = tokens(window, static_cast<unsigned>(history + window + 20));
        for (std::size_t page = 0; page * 64 < history + window; ++page)
            request.pages.push_back(next_page++);
        requests.push_back(request);
        if (history == 0) continue;
        const std::vector<Request> prefill = {{{}, request.history, request.pages}};
        run_rows(model, prefill, {0}, *storage);
    }
    std::vector<std::vector<float>> alone;
    for (std::size_t i = 0; i < requests.size(); ++i)
        alone.push_back(run_rows(model, requests, {i}, *storage)[0]);
    const std::vector<std::vector<std::size_t>> orders = {
        {0, 1, 2, 3, 4, 5, 6, 7}, {7, 5, 3, 1}, {6, 4, 2, 0, 5}};
    for (const auto& order : orders)
        for (const bool padded : {false, true}) {
            const auto together = run_rows(model, requests, order, *storage, padded);
            for (std::size_t i = 0; i < order.size(); ++i)
                EXPECT_EQ(std::memcmp(together[i].data(), alone[order[i]].data(),
                                      alone[order[i]].size() * 4),
                          0)
                    << "row " << order[i];
        }
}

struct Tree {
    std::vector<std::int32_t> parent, depth, token;
    std::vector<std::uint64_t> words;
};

Tree random_tree(std::size_t nodes, std::int64_t vocabulary, unsigned seed) {
    std::mt19937 generator(seed);
    Tree tree;
    for (std::size_t i = 0; i < nodes; ++i) {
        const std::int32_t parent = i == 0 ? -1 : static_cast<std::int32_t>(generator() % i);
        tree.parent.push_back(parent);
        tree.depth.push_back(parent < 0 ? 0 : tree.depth[static_cast<std::size_t>(parent)] + 1);
        const std::uint64_t above = parent < 0 ? 0 : tree.words[static_cast<std::size_t>(parent)];
        tree.words.push_back(above | (std::uint64_t{1} << i));
        tree.token.push_back(
            static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(vocabulary)));
    }
    return tree;
}

// One pass over the tree gives every node the bits that plain decoding along its path gives, and
// after compaction the sequence goes on as if it had been decoded plainly.
TEST_P(ModelInvariance, TreeNodesEqualPlainDecodeAndCommit) {
    RunningModel model = load(2);
    const auto prompt = tokens(120, 3);
    const Tree tree = random_tree(24, vocabulary_, 5);
    const auto history = static_cast<std::int64_t>(prompt.size());

    auto verified = Sequence::create(*model, history, history + 64);
    ASSERT_TRUE(verified->feed(*model, prompt, false));
    batch::BatchBuilder builder(kTestCapacity);
    batch::RowSpec row;
    row.tokens = tree.token;
    row.block_table = verified->block_table();
    row.first_slot = static_cast<std::int32_t>(history);
    row.mask = mla::MaskKind::tree;
    row.depth = tree.depth;
    row.words = tree.words;
    row.gather = static_cast<std::int32_t>(tree.token.size());
    ASSERT_TRUE(builder.add(row));
    const auto forward = model->forward(model.upload(builder.finish()), verified->storage());
    ASSERT_TRUE(forward) << forward.error().message;
    const std::vector<float> nodes = copy_logits(forward->logits);

    std::vector<std::size_t> deepest_path;
    std::vector<float> plain_next;
    const std::int32_t next_token = 7;
    for (std::size_t node = 0; node < tree.token.size(); ++node) {
        std::vector<std::size_t> path;
        for (auto at = static_cast<std::int32_t>(node); at >= 0;
             at = tree.parent[static_cast<std::size_t>(at)])
            path.insert(path.begin(), static_cast<std::size_t>(at));
        auto plain = Sequence::create(*model, history, history + 64);
        ASSERT_TRUE(plain->feed(*model, prompt, false));
        std::vector<float> along;
        for (const std::size_t step : path) {
            const auto fed = plain->feed(*model, std::array{tree.token[step]}, true);
            ASSERT_TRUE(fed) << fed.error().message;
            along = copy_logits(fed->logits);
        }
        const auto width = static_cast<std::size_t>(vocabulary_);
        EXPECT_EQ(std::memcmp(along.data(), nodes.data() + node * width, width * 4), 0)
            << "node " << node << " at depth " << path.size() - 1;
        if (path.size() <= deepest_path.size()) continue;
        deepest_path = path;
        const auto next = plain->feed(*model, std::array{next_token}, true);
        ASSERT_TRUE(next) << next.error().message;
        plain_next = copy_logits(next->logits);
    }
    ASSERT_GT(deepest_path.back() + 1,
              deepest_path.size());  // the path is not simply the first branch

    std::vector<std::int64_t> source, destination;
    for (std::size_t step = 0; step < deepest_path.size(); ++step) {
        source.push_back(
            verified->slot_of(history + static_cast<std::int64_t>(deepest_path[step])));
        destination.push_back(verified->slot_of(history + static_cast<std::int64_t>(step)));
    }
    ASSERT_TRUE(model->compact(source, destination, verified->storage()));
    verified->set_length(history + static_cast<std::int64_t>(deepest_path.size()));
    const auto next = verified->feed(*model, std::array{next_token}, true);
    ASSERT_TRUE(next) << next.error().message;
    EXPECT_EQ(copy_logits(next->logits), plain_next);
}

TEST(KvFormat, ACacheThatAttentionCannotReadIsRefusedByName) {
    const TemporaryDirectory directory;
    for (const DType dtype : {DType::bf16, DType::f32}) {
        auto preset = checkpoint::synthetic_preset("tiny-v2");
        preset->dtype = dtype;
        preset->config.num_hidden_layers = 1;
        write_model(*preset, directory.path() / name_of(dtype));
    }
    const auto refusal = [&](const char* model, mla::KvFormat format) -> std::string {
        try {
            RunningModel(directory.path() / model, 1, best_cpu_variant(), 1, format);
        } catch (const std::runtime_error& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal("bf16", mla::KvFormat::f32),
              "a f32 cache for bf16 activations: bf16, fp8_token and fp8_tensor are possible");
    EXPECT_EQ(refusal("bf16", mla::KvFormat::fp16),
              "a fp16 cache for bf16 activations: bf16, fp8_token and fp8_tensor are possible");
    EXPECT_EQ(refusal("f32", mla::KvFormat::fp8_token),
              "a fp8_token cache for f32 activations: only f32 is possible");
    EXPECT_EQ(refusal("bf16", mla::KvFormat::fp8_token), "");
    EXPECT_EQ(refusal("f32", mla::KvFormat::f32), "");
}

using checkpoint::QuantizedLayout;
const Case kInt4{"tiny-v3", DType::bf16, std::nullopt, {QuantizedLayout::packed_integers, 4, 32}};
const Case kInt8{"tiny-v2", DType::bf16, std::nullopt, {QuantizedLayout::int8, 8, 0}};
const Case kNvfp4Model{"tiny-v3", DType::bf16, std::nullopt, {QuantizedLayout::nvfp4, 4, 16}};

INSTANTIATE_TEST_SUITE_P(Models, ModelInvariance,
                         testing::Values(Case{"tiny-v3", DType::bf16}, Case{"tiny-v3", DType::e4m3},
                                         Case{"tiny-v2", DType::bf16}, Case{"tiny-v2", DType::f32},
                                         Case{"tiny-v3", DType::bf16, mla::KvFormat::fp8_token},
                                         Case{"tiny-v2", DType::e4m3, mla::KvFormat::fp8_tensor},
                                         Case{"tiny-v32", DType::bf16},
                                         Case{"tiny-v32", DType::e4m3, mla::KvFormat::fp8_token},
                                         Case{"tiny-glm5", DType::f32}, kInt4, kInt8, kNvfp4Model),
                         [](const auto& chosen) {
                             std::string name = chosen.param.preset + "_" +
                                                std::string(name_of(chosen.param.dtype));
                             if (chosen.param.kv_format)
                                 name += "_" + std::string(mla::name_of(*chosen.param.kv_format));
                             if (const auto& how = chosen.param.quantization; how.bits > 0)
                                 name += fmt::format("_{}_bits_by_{}", how.bits, how.group);
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace espalier::model
