// SPDX-License-Identifier: Apache-2.0
// Captured steps: a replay is the step. Random batches of decodes, trees, chunks and prompts whose
// beginning is decompressed, drawn with random parameters, biases, bans and grammar masks, go
// through three targets of one model side by side: one runs them as they are, one as recordings of
// their bucket, one as recordings of a larger bucket; in the latter two everything that a step may
// not read is 0xFF. Lengths, trees, pages and draws change from step to step, the recordings stay.
// With ESPALIER_GPU_RUN on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <random>
#include <vector>

#include "engine/model_target.hpp"
#include "engine/tiny_target.hpp"
#include "lossless/check.hpp"

namespace espalier::engine {
namespace {

#if defined(ESPALIER_GPU_RUN)
constexpr int kSteps = 300;
constexpr std::uint64_t kWorkloads = 40;
std::array<TinyTarget*, 2> subjects() {
    return {&gpu_target(Family::v3), &gpu_target(Family::v3_fp8_cache)};
}
#else
constexpr int kSteps = 40;
constexpr std::uint64_t kWorkloads = 8;
std::array<TinyTarget*, 2> subjects() {
    return {&isolated_target(Operations::cpu), &tiny_target(Family::v3_fp8_cache)};
}
#endif

constexpr batch::CaptureOptions kCaptured{
    .capture = true, .ahead = 0, .most_tokens = 2048, .sightings = 1, .poison = true};
constexpr std::int32_t kSequences = 5;
constexpr std::int64_t kPagesEach = 10;
constexpr std::int64_t kMaxLength = kPagesEach * cache::kPageTokens;
constexpr std::int64_t kPages = 1 + kSequences * kPagesEach;
constexpr int kPromptChunk = 100;
constexpr batch::StepCapacity kMost{.absorbed_tokens = 64,
                                    .decompressed_tokens = 1024,
                                    .absorbed_rows = 8,
                                    .decompressed_rows = 8,
                                    .gather = 64,
                                    .max_q_len = 1024,
                                    .max_kv_len = kMaxLength,
                                    .table_rows = kSequences,
                                    .block_stride = kPagesEach};
constexpr ops::SamplingCapacity kDraws{.nodes = 64,
                                       .requests = 8,
                                       .vocabulary = kTinyVocabulary,
                                       .max_context = kMaxLength,
                                       .biases = 4,
                                       .banned = 4,
                                       .masks = 8};

struct Row {
    batch::Form form = batch::Form::absorbed;
    std::int32_t sequence = 0;
    std::int64_t first = 0;
    std::vector<std::int32_t> tokens, depth;
    std::vector<std::uint64_t> words;  // trees
    std::int32_t gather = 0;
    // Parameters of each gathered token's draw.
    ops::DrawParameters parameters{};
    std::vector<ops::LogitBias> biases;
    std::vector<std::int32_t> banned;
    std::vector<std::uint32_t> mask;  // empty: none
    std::int32_t alternatives = 0;
};
using Step = std::vector<Row>;

class RandomSteps {
  public:
    RandomSteps() {
        for (std::int32_t page = 1; page < kPages; ++page) pages_.push_back(page);
        deal_pages();
    }
    // The pages that hold nothing any more are dealt anew.
    void deal_pages() {
        std::ranges::shuffle(pages_, random_);
        lengths_.fill(0);
    }
    std::span<const std::int32_t> table(std::int32_t sequence) const {
        return std::span(pages_).subspan(static_cast<std::size_t>(sequence * kPagesEach),
                                         kPagesEach);
    }
    Step next() {
        if (below(12) == 0) deal_pages();
        Step step;
        const bool prompts = below(2) == 0;
        for (std::int32_t sequence = 0; sequence < kSequences; ++sequence) {
            if (prompts && below(3) == 0) step.push_back(prompt(sequence));
            if (below(3) > 0) step.push_back(row(sequence));
        }
        if (step.empty()) step.push_back(row(0));
        return step;
    }

  private:
    static constexpr int kLongestRow = 11;

    int below(std::int64_t limit) {
        return static_cast<int>(random_() % static_cast<std::uint32_t>(limit));
    }
    std::int32_t any_token() { return below(kTinyVocabulary - 2); }  // the last two are poisoned

    Row row(std::int32_t sequence) {
        std::int64_t& length = lengths_[static_cast<std::size_t>(sequence)];
        Row row;
        const int kind = below(3);
        const int tokens = kind == 0 ? 1 : 1 + below(kLongestRow);
        if (length + tokens > kMaxLength) length = 0;
        row.sequence = sequence;
        row.first = length;
        for (int i = 0; i < tokens; ++i) row.tokens.push_back(any_token());
        if (kind == 1) grow_tree(row);
        row.gather = kind == 2 ? below(tokens + 1) : tokens;
        length += kind == 2 ? tokens : 1;
        choose_draw(row);
        return row;
    }
    // The absorbed rest comes behind it in the same step.
    Row prompt(std::int32_t sequence) {
        std::int64_t& length = lengths_[static_cast<std::size_t>(sequence)];
        Row row;
        row.form = batch::Form::decompressed;
        const int tokens = 1 + below(kPromptChunk);
        if (length + tokens + kLongestRow > kMaxLength) length = 0;
        row.sequence = sequence;
        row.first = length;
        for (int i = 0; i < tokens; ++i) row.tokens.push_back(any_token());
        row.gather = below(4) == 0 ? std::min(tokens, 3) : 0;
        length += tokens;
        choose_draw(row);
        return row;
    }
    void grow_tree(Row& row) {
        for (std::size_t node = 0; node < row.tokens.size(); ++node) {
            const auto parent =
                static_cast<std::size_t>(node == 0 ? 0 : below(std::ssize(row.words)));
            row.depth.push_back(node == 0 ? 0 : row.depth[parent] + 1);
            row.words.push_back((node == 0 ? 0 : row.words[parent]) | std::uint64_t{1} << node);
        }
    }
    void choose_draw(Row& row) {
        if (below(3) > 0)
            row.parameters.temperature = 0.1f * static_cast<float>(1 + below(15));
        else
            row.parameters.temperature = 0;
        if (below(3) == 0) row.parameters.top_k = 1 + below(40);
        if (below(3) == 0) row.parameters.top_p = 0.5f;
        row.parameters.seed = random_();
        if (below(3) == 0) row.biases = {{any_token(), 3.0f}};
        if (below(3) == 0) row.banned = {any_token(), any_token()};
        if (below(3) == 0)
            for (std::int64_t i = 0; i < kDraws.mask_words(); ++i)
                row.mask.push_back(static_cast<std::uint32_t>(random_()));
        row.alternatives = below(3);
    }

    std::mt19937 random_{11};
    std::vector<std::int32_t> pages_;
    std::array<std::int64_t, kSequences> lengths_{};
};

// A target with what builds its steps.
class Runner {
  public:
    Runner(TinyTarget& tiny, const batch::CaptureOptions& capture)
        : target_(ModelTarget::create(**tiny.model, kPages, capture).value()),
          builder_(kMost),
          draws_(ops::SamplingBatchBuilder::create(kDraws).value()) {
        const auto reserved = target_->reserve({.batch = kMost, .draws = kDraws});
        if (!reserved) throw std::runtime_error(reserved.error().message);
    }
    ModelTarget& target() { return *target_; }
    std::int64_t prompts() const { return prompts_; }  // steps with decompressed rows, recorded

    // Capacities of at least this many tokens of each form, where it has any. What was drawn, and
    // the flags of the step's tokens.
    struct Result {
        std::vector<ops::Draw> draws;
        std::vector<ops::TokenLogprob> alternatives;
        std::vector<std::uint8_t> nonfinite;
    };
    struct Least {
        std::int64_t absorbed = 0, decompressed = 0;
        std::int32_t longest_row = 0;
    };
    Result run(const RandomSteps& steps, const Step& step, const Least& least) {
        builder_.clear();
        for (const Row& row : step) add(steps, row);
        const batch::StepCapacity need = builder_.need();
        batch::StepCapacity wanted = need;
        wanted.absorbed_tokens = std::max(need.absorbed_tokens, least.absorbed);
        wanted.max_q_len = std::max(need.max_q_len, least.longest_row);
        if (need.decompressed_tokens > 0)
            wanted.decompressed_tokens = std::max(need.decompressed_tokens, least.decompressed);
        const batch::CaptureOptions& options = target_->steps().options();
        batch::StepCapacity capacity = target_->padded(wanted);
        if (!options.capture) capacity = need;
        const batch::HostBatch batch = must(builder_.finish(capacity));
        if (need.decompressed_tokens > 0 &&
            batch::is_captured(capacity, kMost, options.most_tokens))
            ++prompts_;
        lay_draws(step, batch.capacity.gather);
        must(target_->run(batch, draws_.nodes() > 0 ? &draws_ : nullptr));
        const StepResult got = must(target_->wait());
        EXPECT_GT(got.times.model, 0);
        EXPECT_EQ(got.times.sampling > 0, draws_.nodes() > 0);
        const auto gathered = static_cast<std::size_t>(need.gather);
        Result result;
        result.draws.assign(got.draws.begin(), got.draws.begin() + need.gather);
        result.alternatives.assign(got.alternatives.begin(), got.alternatives.end());
        for (std::size_t row = 0; row < step.size(); ++row) {
            const auto first = got.nonfinite.begin() + builder_.first_token(row);
            result.nonfinite.insert(result.nonfinite.end(), first,
                                    first + std::ssize(step[row].tokens));
        }
        for (const ops::Draw& pad : got.draws.subspan(gathered)) EXPECT_EQ(pad.token, -1);
        return result;
    }

  private:
    template <typename T>
    static T must(Expected<T> result) {
        if (!result) throw std::runtime_error(result.error().message);
        if constexpr (!std::is_void_v<T>) return std::move(*result);
    }
    void add(const RandomSteps& steps, const Row& from) {
        batch::RowSpec row;
        row.tokens = from.tokens;
        row.block_table = steps.table(from.sequence);
        row.table_row = from.sequence;
        row.first_slot = static_cast<std::int32_t>(from.first);
        row.gather = from.gather;
        row.form = from.form;
        if (!from.words.empty()) {
            row.mask = mla::MaskKind::tree;
            row.depth = from.depth;
            row.words = from.words;
        }
        must(builder_.add(row));
    }
    void lay_draws(const Step& step, std::int64_t nodes) {
        draws_.begin(nodes);
        for (const Row& row : step) {
            if (row.gather == 0) continue;
            ops::NodeRequest node{.parameters = row.parameters, .alternatives = row.alternatives};
            node.biases = draws_.add_biases(row.biases);
            node.banned = draws_.add_banned(row.banned);
            if (!row.mask.empty())
                std::ranges::copy(row.mask, draws_.add_mask(node.allowed).begin());
            for (std::int32_t i = 0; i < row.gather; ++i) {
                node.position = static_cast<std::int32_t>(row.first) + 1 + i;
                draws_.add(node);
            }
        }
        draws_.finish();
    }

    std::unique_ptr<ModelTarget> target_;
    std::int64_t prompts_ = 0;
    batch::BatchBuilder builder_;
    ops::SamplingBatchBuilder draws_;
};

bool same_float(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
bool same_draws(const std::vector<ops::Draw>& a, const std::vector<ops::Draw>& b) {
    return std::ranges::equal(a, b, [](const ops::Draw& one, const ops::Draw& other) {
        return one.token == other.token && one.flag == other.flag &&
               same_float(one.logprob, other.logprob);
    });
}
bool same_alternatives(const std::vector<ops::TokenLogprob>& a,
                       const std::vector<ops::TokenLogprob>& b) {
    return std::ranges::equal(
        a, b, [](const ops::TokenLogprob& one, const ops::TokenLogprob& other) {
            return one.token == other.token && same_float(one.logprob, other.logprob);
        });
}

TEST(CapturedSteps, ReplayEqualsEagerEqualsAnyOtherBucket) {
    constexpr Runner::Least kLarger{.absorbed = 64, .decompressed = 513, .longest_row = 2};
    for (TinyTarget* tiny : subjects()) {
        RandomSteps steps;
        Runner eager(*tiny, {}), captured(*tiny, kCaptured), larger(*tiny, kCaptured);
        for (int number = 0; number < kSteps; ++number) {
            SCOPED_TRACE(number);
            const Step step = steps.next();
            const Runner::Result want = eager.run(steps, step, {});
            for (Runner* runner : {&captured, &larger}) {
                const Runner::Result got =
                    runner->run(steps, step, runner == &larger ? kLarger : Runner::Least{});
                ASSERT_TRUE(same_draws(got.draws, want.draws));
                ASSERT_TRUE(same_alternatives(got.alternatives, want.alternatives));
                ASSERT_EQ(got.nonfinite, want.nonfinite);
            }
        }
        EXPECT_EQ(eager.target().steps().count(), 0);
        EXPECT_GT(captured.target().steps().count(), 6);
        EXPECT_GT(captured.prompts(), kSteps / 4);
        // Without prompts; with them, up to 512 slots and up to all, where sequences came so far.
        EXPECT_GE(larger.target().steps().count(), 2);
        EXPECT_LE(larger.target().steps().count(), 3);
        EXPECT_GT(larger.prompts(), kSteps / 4);
    }
}

TEST(CapturedSteps, AreMadeAheadWithAPoolOfTwoPagesAndTouchNone) {
    TinyTarget& tiny = *subjects()[0];
    batch::CaptureOptions options = kCaptured;
    options.ahead = 48;
    const auto target = ModelTarget::create(**tiny.model, 2, options).value();
    batch::StepCapacity most = kMost;
    most.block_stride = 1;
    ASSERT_TRUE(target->reserve({.batch = most, .draws = kDraws}));
    // 1, 2, 4, 8, 16, 24, 32, 48 tokens; all but the first also in longer rows
    EXPECT_EQ(target->steps().count(), 15);
    Device& device = (*tiny.model)->device();
    for (std::int64_t layer = 0; layer < 2; ++layer) {
        const mla::KvPages pages = target->storage().target(layer);
        std::vector<std::byte> bytes(
            static_cast<std::size_t>(pages.page_stride * pages.page_count));
        ASSERT_TRUE(device.download(device.stream(), bytes.data(), pages.data, bytes.size()));
        EXPECT_EQ(std::ranges::count(bytes, std::byte{0xFF}), std::ssize(bytes));
    }
}

TEST(CapturedSteps, StayWithinTheirBytesAndTheStepsGoOn) {
    TinyTarget& tiny = *subjects()[0];
    batch::CaptureOptions options = kCaptured;
    options.byte_limit = 0;
    RandomSteps steps;
    Runner eager(tiny, {}), limited(tiny, options);
    for (int number = 0; number < 6; ++number) {
        const Step step = steps.next();
        ASSERT_TRUE(
            same_draws(limited.run(steps, step, {}).draws, eager.run(steps, step, {}).draws));
    }
    EXPECT_EQ(limited.target().steps().count(), 0);
}

TEST(CapturedSteps, AreLossless) {
    for (TinyTarget* tiny : subjects()) {
        lossless::Subject subject = tiny->target();
        subject.capture = kCaptured;
        lossless::Coverage coverage;
        for (std::uint64_t seed = 700; seed < 700 + kWorkloads; ++seed) {
            const auto verdict =
                lossless::check_workload(lossless::random_workload(seed, subject), subject);
            ASSERT_TRUE(verdict) << seed << ": " << verdict.error().message;
            ASSERT_TRUE(verdict->differences.empty()) << verdict->differences.front();
            coverage.add(verdict->coverage);
        }
        EXPECT_GT(coverage.accepted, 0);
        EXPECT_GT(coverage.moved, 0);
    }
}

}  // namespace
}  // namespace espalier::engine
