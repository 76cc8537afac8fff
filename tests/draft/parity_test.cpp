// SPDX-License-Identifier: Apache-2.0
// Draft models against a plain restatement of the published definition
// (tools/make_draft_goldens.py): for texts of 1, 2 and 21 committed tokens from their first one on,
// the KV of committed tokens, and the logits of every node of a branching tree that grows level by
// level. Weights and hidden states are made here by the rule that the tool used; only results are
// stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "batch/batch_builder.hpp"
#include "draft/eagle3.hpp"
#include "draft/mtp.hpp"
#include "draft/tiny_drafts.hpp"
#include "parallel/local_ranks.hpp"
#include "support/paths.hpp"

namespace espalier::draft {
namespace {

// f32 against f64, relative to the largest: sums of up to 512 terms differ by ~1e-6, and a wrong
// term anywhere by 1e-2 or more (measured by leaving each norm out).
constexpr double kTolerance = 2e-5;

constexpr std::array kGoldens = {"mtp", "mtp_glm", "eagle3", "eagle3_1", "eagle3_norms"};

std::filesystem::path golden_folder() {
    return std::filesystem::path(test::source_directory()) / "tests/draft/goldens";
}

struct Golden {
    nlohmann::json header;
    std::vector<float> numbers;  // of each text: keys, then logits

    std::vector<std::int32_t> ints(const char* name) const {
        return header.at(name).get<std::vector<std::int32_t>>();
    }
};

Golden read_golden(const std::string& name) {
    std::ifstream in(golden_folder() / (name + ".golden"), std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    if (all.substr(0, 8) != "EDRAFTS2") throw std::runtime_error(name + ": no golden");
    std::uint64_t length = 0;
    std::memcpy(&length, all.data() + 8, 8);
    Golden golden;
    golden.header = nlohmann::json::parse(all.substr(16, length));
    golden.numbers.resize((all.size() - 16 - length) / 4);
    std::memcpy(golden.numbers.data(), all.data() + 16 + length, golden.numbers.size() * 4);
    return golden;
}

// The golden's network with all that it borrows.
struct Subject {
    CpuDevice device{1};
    std::unique_ptr<ops::Backend> backend = ops::make_cpu_backend(best_cpu_variant());
    std::unique_ptr<mla::Kernels> kernels = mla::make_cpu_kernels(best_cpu_variant());
    model::Weights target;
    std::unique_ptr<Network> network;

    explicit Subject(const Golden& golden, const model::Shard& shard) {
        const TemporaryDirectory directory;
        const auto path = directory.path() / "model";
        const std::string config = golden.header.at("config");
        const std::uint64_t seed = golden.header.at("seed");
        if (golden.header.at("kind") == "mtp") {
            checkpoint::SyntheticModel synthetic;
            synthetic.config = must(checkpoint::parse_model_config(config, "config.json"));
            synthetic.dtype = DType::f32;
            synthetic.seed = seed;
            model::write_model(synthetic, path);
            const auto opened = std::make_shared<const checkpoint::Checkpoint>(
                must(checkpoint::Checkpoint::open(path.string())));
            target =
                must(model::Weights::load(opened, device, *backend, {.mtp = true, .shard = shard}));
            network = make_mtp(opened->config(), target);
            return;
        }
        checkpoint::SyntheticDraft synthetic;
        synthetic.config = must(checkpoint::parse_eagle3_config(config, "config.json"));
        synthetic.tensors = {
            .dtype = DType::f32, .layer = golden.header.at("layer"), .embedding = true};
        synthetic.seed = seed;
        ThreadPool pool(1);
        if (!checkpoint::write_synthetic_draft(synthetic, path, pool))
            throw std::runtime_error("the draft could not be written");
        checkpoint::ModelConfig target_config;
        target_config.vocab_size = synthetic.config.layer.vocab_size;
        target_config.hidden_size = synthetic.config.target_hidden_size;
        target_config.num_hidden_layers = 12;
        network = make_eagle3(std::make_shared<const Eagle3Weights>(must(Eagle3Weights::load(
                                  std::make_shared<const checkpoint::Checkpoint>(
                                      must(checkpoint::Checkpoint::open_eagle3(path.string()))),
                                  target_config, device, *backend))),
                              target);
    }
};

// The taps of the tool: a tensor of that name, as the writer of synthetic models would fill it.
std::vector<float> golden_taps(std::uint64_t seed, std::int64_t tokens, std::int64_t width) {
    const checkpoint::TensorSpec spec{.name = "taps",
                                      .role = checkpoint::TensorRole::embedding,
                                      .type = checkpoint::StoredType::f32,
                                      .shape = {tokens, width},
                                      .inputs = width};
    std::vector<float> taps(static_cast<std::size_t>(tokens * width));
    checkpoint::synthetic_values(spec, seed, 0, taps.size(),
                                 reinterpret_cast<std::byte*>(taps.data()));
    return taps;
}

double relative_error(std::span<const float> got, std::span<const float> want) {
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (!std::isfinite(got[i])) return std::nan("");
        difference = std::max(difference, std::abs(double{got[i]} - double{want[i]}));
        largest = std::max(largest, std::abs(double{want[i]}));
    }
    return difference / largest;
}

// Runs the first `committed` tokens of a golden and its tree through a DraftModel as ModelDrafter
// does. What nothing writes is NaN.
class GoldenRun {
  public:
    GoldenRun(const Golden& golden, std::int32_t committed, const model::Shard& shard = {},
              parallel::Ranks* ranks = nullptr)
        : golden_(golden),
          subject_(golden, shard),
          committed_(golden.ints("committed")),
          tree_(golden.ints("tree")),
          parents_(golden.ints("parents")),
          shape_(subject_.network->shape()),
          model_(must(
              DraftModel::create(std::move(subject_.network),
                                 {subject_.device, *subject_.backend, *subject_.kernels, {}, ranks},
                                 {.tokens = 64, .nodes = 64, .rows = 1, .max_kv_len = 256}))),
          kv_(must(cache::KvStorage::create(subject_.device,
                                            layout_with(cache::make_layout(1, mla::KvFormat::f32),
                                                        std::array{DraftPlanes{shape_.state}}),
                                            4))),
          batch_(subject_.device) {
        committed_.resize(static_cast<std::size_t>(committed));
        const mla::KvPages pages = kv_.draft(0);
        std::memset(pages.data, 0xFF,
                    static_cast<std::size_t>(pages.page_count * pages.page_stride));
    }

    // All of it in one go: the states of committed tokens are one step behind their tokens, and the
    // first token has a state alone. Their keys.
    std::vector<float> write_committed() {
        const auto count = std::ssize(committed_);
        std::vector<float> taps = golden_taps(golden_.header.at("seed"), count, shape_.taps);
        states_.resize(static_cast<std::size_t>((count + 1) * shape_.state));
        const Matrix states = Matrix::of(states_.data(), count + 1, shape_.state);
        const Matrix combined =
            model_->combine(Matrix::of(taps.data(), count, shape_.taps), states.slice(1, count));
        if (combined.data != states.slice(1, count).data)
            std::copy_n(combined.row<float>(0), count * shape_.state, states.row<float>(1));
        std::vector<std::int32_t> positions(committed_.size());
        std::iota(positions.begin(), positions.end(), 0);
        std::vector<std::int64_t> slots(committed_.size());
        std::iota(slots.begin(), slots.end(), 64);  // page 1
        slots[0] = -1;
        if (!model_->write_kv({count, committed_.data(), positions.data(), slots.data()},
                              states.slice(0, count), pages()))
            throw std::runtime_error("write_kv");
        const float* keys = reinterpret_cast<const float*>(kv_.draft(0).data) + 64 * mla::kKey;
        return {keys + mla::kKey, keys + count * mla::kKey};
    }

    // One batch per level; nodes of a level are consecutive.
    std::vector<float> logits_of_tree() {
        std::vector<std::int32_t> depth(tree_.size());
        std::vector<std::uint64_t> words(tree_.size(), 1);
        for (std::size_t i = 1; i < tree_.size(); ++i) {
            const auto parent = static_cast<std::size_t>(parents_[i]);
            depth[i] = depth[parent] + 1;
            words[i] = words[parent] | std::uint64_t{1} << i;
        }
        std::vector<float> after(tree_.size() * static_cast<std::size_t>(shape_.state)), logits;
        const auto root_state = std::span(states_).last(static_cast<std::size_t>(shape_.state));
        for (std::size_t first = 0; first < tree_.size();) {
            std::size_t end = first;
            while (end < tree_.size() && depth[end] == depth[first]) ++end;
            std::vector<float> before;
            for (std::size_t i = first; i < end; ++i) {
                const auto width = static_cast<std::size_t>(shape_.state);
                const auto state = i == 0
                                       ? root_state
                                       : std::span(after).subspan(
                                             static_cast<std::size_t>(parents_[i]) * width, width);
                before.insert(before.end(), state.begin(), state.end());
            }
            append(run_level(first, end, depth, words, before, after), logits);
            first = end;
        }
        return logits;
    }

  private:
    cache::LayerPages pages() { return kv_.layer(cache::Plane::Of::draft, 0); }

    static void append(const Matrix& from, std::vector<float>& to) {
        for (std::int64_t row = 0; row < from.rows; ++row)
            to.insert(to.end(), from.row<float>(row), from.row<float>(row) + from.cols);
    }

    Matrix run_level(std::size_t first, std::size_t end, const std::vector<std::int32_t>& depth,
                     const std::vector<std::uint64_t>& words, std::vector<float>& before,
                     std::vector<float>& after) {
        const std::size_t count = end - first;
        const std::array<std::int32_t, 1> table = {1};
        builder_.clear();
        batch::RowSpec row;
        row.tokens = std::span(tree_).subspan(first, count);
        row.block_table = table;
        row.first_slot = static_cast<std::int32_t>(committed_.size() + first);
        row.mask = mla::MaskKind::tree;
        row.tail_len = static_cast<std::int32_t>(end);
        row.depth = std::span(depth).subspan(first, count);
        row.words = std::span(words).subspan(first, count);
        if (!builder_.add(row)) throw std::runtime_error("the row");
        const batch::BatchView view = must(batch_.upload(nullptr, builder_.finish()));
        const auto nodes = static_cast<std::int64_t>(count);
        if (!model_->write_kv({nodes, view.tokens, view.position, view.slot},
                              Matrix::of(before.data(), nodes, shape_.state), pages()))
            throw std::runtime_error("write_kv");
        float* out = after.data() + static_cast<std::int64_t>(first) * shape_.state;
        return must(model_->logits(view, pages(), Matrix::of(out, nodes, shape_.state)));
    }

    const Golden& golden_;
    Subject subject_;
    std::vector<std::int32_t> committed_, tree_, parents_;
    NetworkShape shape_;
    std::unique_ptr<DraftModel> model_;
    cache::KvStorage kv_;
    batch::DeviceBatch batch_;
    batch::BatchBuilder builder_{{.absorbed_tokens = 64,
                                  .absorbed_rows = 1,
                                  .max_q_len = 64,
                                  .max_kv_len = 256,
                                  .table_rows = 1,
                                  .block_stride = 4}};
    std::vector<float> states_;  // [1 + committed, state]: before token i
};

class DraftParity : public testing::TestWithParam<const char*> {};

TEST_P(DraftParity, MatchesThePlainRestatement) {
    const Golden golden = read_golden(GetParam());
    std::span<const float> left = golden.numbers;
    const auto error = [&left](const std::vector<float>& got) {
        if (got.size() > left.size()) return std::nan("");
        const double result = got.empty() ? 0 : relative_error(got, left.first(got.size()));
        left = left.subspan(got.size());
        return result;
    };
    for (const std::int32_t committed : golden.ints("texts")) {
        GoldenRun run(golden, committed);
        const double key_error = error(run.write_committed());
        const double logit_error = error(run.logits_of_tree());
        RecordProperty(fmt::format("error_{}", committed),
                       fmt::format("{:.1e}, {:.1e}", key_error, logit_error));
        EXPECT_LE(key_error, kTolerance) << committed;
        EXPECT_LE(logit_error, kTolerance) << committed;
    }
    EXPECT_TRUE(left.empty());
}

INSTANTIATE_TEST_SUITE_P(Goldens, DraftParity, testing::ValuesIn(kGoldens),
                         [](const auto& parameter) { return std::string(parameter.param); });

// The MTP layer's heads, segments and experts lie on two or five ranks; the draft knows nothing
// else of it.
TEST(DraftRanks, GiveTheKeysAndLogitsOfOne) {
    for (const auto& [name, count] : {std::pair("mtp", 2), std::pair("mtp_glm", 5)}) {
        const Golden golden = read_golden(name);
        GoldenRun one(golden, 21);
        const std::vector<float> keys = one.write_committed(), logits = one.logits_of_tree();
        std::mutex mutex;
        parallel::run_local_ranks(count, [&](parallel::Ranks& ranks) {
            GoldenRun run(golden, 21, {.rank = ranks.rank(), .count = ranks.count()}, &ranks);
            const std::vector<float> my_keys = run.write_committed();
            const std::vector<float> my_logits = run.logits_of_tree();
            const std::lock_guard lock(mutex);
            EXPECT_EQ(my_keys, keys) << name << ", rank " << ranks.rank();
            EXPECT_EQ(my_logits, logits) << name << ", rank " << ranks.rank();
        });
    }
}

TEST(DraftParityGoldens, EveryFileIsTested) {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(golden_folder()))
        files.insert(entry.path().stem().string());
    EXPECT_EQ(files, std::set<std::string>(kGoldens.begin(), kGoldens.end()));
}

}  // namespace
}  // namespace espalier::draft
