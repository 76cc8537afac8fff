// SPDX-License-Identifier: Apache-2.0
// Capacities stay, data changes: a step padded to fixed capacities, as a captured one is replayed,
// gives the bits of the same step at its exact sizes. Random batches of decodes, trees and chunks
// of both forms through a whole model, in two caches side by side: one sees exact batches; the
// other padded ones, with garbage wherever nothing may be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "batch/device_batch.hpp"
#include "batch/poison.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

#ifdef ESPALIER_LONG_RUN
constexpr int kSteps = 400;
#else
constexpr int kSteps = 24;
#endif

constexpr std::int32_t kSequences = 6;
constexpr std::int64_t kPagesEach = 4;
constexpr std::int64_t kMaxLength = kPagesEach * cache::kPageTokens;
constexpr batch::StepCapacity kPinned{.absorbed_tokens = 90,
                                      .decompressed_tokens = 70,
                                      .absorbed_rows = 8,
                                      .decompressed_rows = 7,
                                      .gather = 60,
                                      .max_q_len = 70,
                                      .max_kv_len = 320,
                                      .table_rows = 9,
                                      .block_stride = 5};

enum class Kind { decode, tree, absorbed, decompressed, both };

struct Row {
    std::int32_t sequence = 0;
    std::int64_t first = 0;
    batch::Form form = batch::Form::absorbed;
    std::int32_t gather = 0;
    std::vector<std::int32_t> tokens, depth;
    std::vector<std::uint64_t> words;  // trees
};
using Step = std::vector<Row>;

class PinnedCapacity : public testing::Test {
  protected:
    PinnedCapacity() {
        auto preset = checkpoint::synthetic_preset("tiny-v3");
        preset->config.num_hidden_layers = 2;
        preset->config.num_attention_heads = 2;
        write_model(*preset, directory_.path() / "model");
        vocabulary_ = preset->config.vocab_size;
        model_ = std::make_unique<RunningModel>(directory_.path() / "model", 2, best_cpu_variant());
        std::vector<std::int32_t> pages(kSequences * kPagesEach);
        for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i + 1);
        std::shuffle(pages.begin(), pages.end(), random_);
        for (std::int32_t i = 0; i < kSequences; ++i) {
            const auto first = pages.begin() + i * kPagesEach;
            tables_.emplace_back(first, first + kPagesEach);
        }
    }

    int below(std::int64_t limit) {
        return static_cast<int>(random_() % static_cast<std::uint32_t>(limit));
    }
    std::int32_t any_token() { return below(vocabulary_); }

    cache::KvStorage new_storage(std::byte fill) {
        auto storage =
            cache::KvStorage::create(device(), (*model_)->kv_layout(), 1 + kSequences * kPagesEach);
        for (std::int64_t layer = 0; layer < 2; ++layer) {
            const mla::KvPages pages = storage->target(layer);
            EXPECT_TRUE(
                device().fill(device().stream(), pages.data, fill,
                              static_cast<std::size_t>(pages.page_stride * pages.page_count)));
        }
        return std::move(*storage);
    }
    Device& device() { return (*model_)->device(); }

    Row plain_row(std::int32_t sequence, std::int64_t first, int tokens, batch::Form form) {
        Row row;
        row.sequence = sequence;
        row.first = first;
        row.form = form;
        for (int i = 0; i < tokens; ++i) row.tokens.push_back(any_token());
        return row;
    }
    Row tree_row(std::int32_t sequence, std::int64_t first, int nodes) {
        Row row = plain_row(sequence, first, nodes, batch::Form::absorbed);
        for (int node = 0; node < nodes; ++node) {
            const int parent = node == 0 ? -1 : below(node);
            row.depth.push_back(parent < 0 ? 0 : row.depth[static_cast<std::size_t>(parent)] + 1);
            const std::uint64_t above =
                parent < 0 ? 0 : row.words[static_cast<std::size_t>(parent)];
            row.words.push_back(above | std::uint64_t{1} << node);
        }
        row.gather = nodes;
        return row;
    }
    // One or two rows of a sequence from where it ends; they count as fed.
    void add_rows(Step& step, std::int32_t sequence, Kind kind, int tokens) {
        std::int64_t& length = lengths_[static_cast<std::size_t>(sequence)];
        if (length + 2 * tokens > kMaxLength) length = 0;
        switch (kind) {
            case Kind::decode:
                step.push_back(plain_row(sequence, length++, 1, batch::Form::absorbed));
                step.back().gather = 1;
                return;
            case Kind::tree:
                step.push_back(tree_row(sequence, length++, tokens));
                return;
            case Kind::decompressed:
            case Kind::both:
                step.push_back(plain_row(sequence, length, tokens, batch::Form::decompressed));
                length += tokens;
                if (kind == Kind::decompressed) return;
                [[fallthrough]];
            case Kind::absorbed:
                step.push_back(plain_row(sequence, length, tokens, batch::Form::absorbed));
                step.back().gather = below(tokens + 1);
                length += tokens;
        }
    }
    Step random_step() {
        Step step;
        for (std::int32_t sequence = 0; sequence < kSequences; ++sequence)
            if (below(4) > 0) add_rows(step, sequence, static_cast<Kind>(below(5)), 1 + below(9));
        std::shuffle(step.begin(), step.end(), random_);
        return step;
    }
    // Fills every capacity to the last token, row and gathered one.
    Step full_step() {
        Step step;
        lengths_.fill(0);
        for (std::int32_t i = 0; i < kSequences; ++i)
            step.push_back(plain_row(i, 0, i == 0 ? 20 : 8, batch::Form::decompressed));
        step.push_back(plain_row(0, 20, 10, batch::Form::decompressed));
        for (std::int32_t i = 0; i < kSequences; ++i)
            step.push_back(tree_row(i, i == 0 ? 30 : 8, 10));
        step.push_back(plain_row(1, 18, 25, batch::Form::absorbed));
        step.push_back(plain_row(2, 18, 5, batch::Form::absorbed));
        return step;
    }

    void build(batch::BatchBuilder& builder, const Step& step) const {
        builder.clear();
        for (const Row& from : step) {
            batch::RowSpec row;
            row.tokens = from.tokens;
            row.block_table = tables_[static_cast<std::size_t>(from.sequence)];
            row.table_row = 2 + from.sequence;
            row.first_slot = static_cast<std::int32_t>(from.first);
            row.form = from.form;
            row.gather = from.gather;
            if (!from.words.empty()) {
                row.mask = mla::MaskKind::tree;
                row.depth = from.depth;
                row.words = from.words;
            }
            const auto added = builder.add(row);
            ASSERT_TRUE(added) << added.error().message;
        }
    }

    // 0xFF in every byte of the batch that may not be read, and in every block table.
    static std::vector<std::byte> with_garbage(const batch::HostBatch& batch) {
        std::vector<std::byte> bytes(batch.bytes.begin(), batch.bytes.end());
        batch::poison_pads(batch.capacity, bytes);
        return bytes;
    }
    void spoil_tables(batch::DeviceBatch& on_device, const batch::HostBatch& like) {
        const std::vector<std::int32_t> nowhere(kPinned.block_stride, -1);
        std::vector<batch::BlockTableRow> rows;
        for (std::int32_t row = 0; row < kPinned.table_rows; ++row) rows.push_back({row, nowhere});
        batch::HostBatch spoiled = like;
        spoiled.tables = rows;
        ASSERT_TRUE(on_device.upload(device().stream(), spoiled));
    }

    std::vector<std::byte> run(const batch::BatchView& view, cache::KvStorage& storage,
                               std::int64_t gathered) {
        const auto computed = (*model_)->forward(view, storage);
        EXPECT_TRUE(computed) << computed.error().message;
        std::vector<std::byte> logits(static_cast<std::size_t>(gathered * vocabulary_) * 4);
        EXPECT_TRUE(device().download(device().stream(), logits.data(), computed->logits.data,
                                      logits.size()));
        return logits;
    }
    // Every slot that a row of the step has written.
    std::vector<std::byte> slots_of(const Step& step, cache::KvStorage& storage) {
        std::vector<std::byte> bytes;
        for (std::int64_t layer = 0; layer < 2; ++layer) {
            const mla::KvPages pages = storage.target(layer);
            const std::int64_t stride = pages.page_stride / pages.page_tokens;
            std::vector<std::byte> all(
                static_cast<std::size_t>(pages.page_stride * pages.page_count));
            EXPECT_TRUE(device().download(device().stream(), all.data(), pages.data, all.size()));
            for (const Row& row : step)
                for (std::int64_t i = 0; i < std::ssize(row.tokens); ++i) {
                    const std::int64_t place = row.first + i;
                    const auto& table = tables_[static_cast<std::size_t>(row.sequence)];
                    const std::int64_t slot =
                        table[static_cast<std::size_t>(place / 64)] * std::int64_t{64} + place % 64;
                    bytes.insert(bytes.end(), all.begin() + slot * stride,
                                 all.begin() + (slot + 1) * stride);
                }
            // The null page is nobody's.
            null_page_.assign(all.begin(), all.begin() + pages.page_stride);
        }
        return bytes;
    }

    TemporaryDirectory directory_;
    std::int64_t vocabulary_ = 0;
    std::unique_ptr<RunningModel> model_;
    std::mt19937 random_{7};
    std::vector<std::vector<std::int32_t>> tables_;
    std::array<std::int64_t, kSequences> lengths_{};
    std::vector<std::byte> null_page_;
};

TEST_F(PinnedCapacity, GivesTheBitsOfExactOnes) {
    cache::KvStorage exact_storage = new_storage(std::byte{0});
    cache::KvStorage pinned_storage = new_storage(std::byte{0xFF});
    batch::BatchBuilder builder(kPinned);
    batch::DeviceBatch exact_memory(device()), pinned_memory(device());
    for (int number = 0; number < kSteps; ++number) {
        SCOPED_TRACE(number);
        const Step step = number == 0 ? full_step() : number == 1 ? Step{} : random_step();
        ASSERT_NO_FATAL_FAILURE(build(builder, step));
        const std::int64_t gathered = builder.need().gather;
        std::vector<std::byte> expected;
        if (!step.empty()) {
            const auto view = exact_memory.upload(device().stream(), builder.finish());
            expected = run(*view, exact_storage, gathered);
        }
        const auto pinned = builder.finish(kPinned);
        ASSERT_TRUE(pinned) << pinned.error().message;
        const std::vector<std::byte> bytes = with_garbage(*pinned);
        batch::HostBatch garbled = *pinned;
        garbled.bytes = bytes;
        spoil_tables(pinned_memory, garbled);
        const auto view = pinned_memory.upload(device().stream(), garbled);
        ASSERT_EQ(run(*view, pinned_storage, gathered), expected);
        ASSERT_EQ(slots_of(step, pinned_storage), slots_of(step, exact_storage));
        slots_of(step, pinned_storage);
        ASSERT_EQ(std::count(null_page_.begin(), null_page_.end(), std::byte{0xFF}),
                  std::ssize(null_page_));
        if (number == 0) {
            EXPECT_EQ(builder.need().absorbed_tokens, kPinned.absorbed_tokens);
            EXPECT_EQ(builder.need().decompressed_tokens, kPinned.decompressed_tokens);
            EXPECT_EQ(builder.need().absorbed_rows, kPinned.absorbed_rows);
            EXPECT_EQ(builder.need().decompressed_rows, kPinned.decompressed_rows);
            EXPECT_EQ(gathered, kPinned.gather);
        }
    }
}

}  // namespace
}  // namespace espalier::model
