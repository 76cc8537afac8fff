// SPDX-License-Identifier: Apache-2.0
// Keys of 256 + 64 columns in every implementation. Such a problem is one of 512 + 64 whose other
// columns are zero, which adds nothing to any sum: every number must be the same, bit for bit.
#include <cstring>

#include "base/element.hpp"
#include "base/random.hpp"
#include "linalg/packed.hpp"
#include "mla/implementation.hpp"
#include "mla/storage.hpp"

namespace espalier::conformance {
namespace {

using namespace mla;

constexpr KeyDims kNarrow{256, 64};
constexpr HeadDims kHead{64, 128};
constexpr std::int64_t kPages = 4, kTokens = 16, kLength = 41, kQueries = 3, kHeads = 2;
constexpr float kScale = 0.09f;

// Rows of `own` columns as rows of `wider`: a gap of zeros behind the first `gap_at`.
std::vector<float> widened(const std::vector<float>& rows, std::int64_t own, std::int64_t wider,
                           std::int64_t gap_at) {
    std::vector<float> result;
    for (auto row = rows.begin(); row != rows.end(); row += own) {
        result.insert(result.end(), row, row + gap_at);
        result.insert(result.end(), static_cast<std::size_t>(wider - own), 0.0f);
        result.insert(result.end(), row + gap_at, row + own);
    }
    return result;
}

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
        store_element(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
    return bytes;
}

// Results of attention, as f32.
struct Result {
    std::vector<float> out, lse;
};

// One sequence in the pages of one width.
class Problem {
  public:
    Problem(const Implementation& of, const KeyDims& dims)
        : kernels(of.variant ? make_cpu_kernels(*of.variant) : make_reference_kernels()),
          panels_(of.variant),
          memory_(size(of.format, dims), std::byte{0x5a}) {
        const KvFormat format = of.format;
        kv.data = memory_.data();
        kv.format = format;
        kv.page_tokens = kTokens;
        kv.page_stride = page_stride_bytes(format, kTokens, dims);
        kv.page_count = kPages;
        kv.scale = 0.03f;
        kv.dims = dims;
        rows_.rows = 1;
        rows_.token_end = kQueries;
        rows_.q_indptr = indptr_;
        rows_.kv_len = &length_;
        rows_.block_table = table_;
        rows_.block_stride = 3;
        rows_.mask = &mask_;
        rows_.max_q_len = kQueries;
        rows_.max_kv_len = kLength;
    }

    void append(const std::vector<float>& keys) {
        for (std::int64_t token = 0; token < kLength; ++token)
            slots_.push_back(pool_slot(table_, kTokens, token));
        AppendCall call;
        call.tokens = kLength;
        call.latent = keys.data();
        call.rope = keys.data() + kv.dims.latent;
        call.latent_stride = call.rope_stride = kv.dims.key();
        call.slot = slots_.data();
        call.kv = kv;
        ASSERT_TRUE(kernels->append(context_, call));
    }
    void compact(const std::vector<std::int64_t>& source, const std::vector<std::int64_t>& to) {
        const CompactCall call{std::ssize(source), source.data(), to.data(), kv};
        ASSERT_TRUE(kernels->compact(context_, call));
    }
    std::vector<double> slot(std::int64_t index) const {
        std::vector<double> columns(static_cast<std::size_t>(kv.dims.key()));
        read_slot(kv, index, columns.data());
        return columns;
    }
    Result absorbed(const std::vector<float>& queries, DType dtype) {
        const std::vector<std::byte> q = stored(queries, dtype);
        Result result{std::vector<float>(kQueries * kHeads * kv.dims.latent),
                      std::vector<float>(kQueries * kHeads)};
        AbsorbedCall call;
        call.rows = rows_;
        call.heads = kHeads;
        call.q = q.data();
        call.q_dtype = dtype;
        call.kv = kv;
        call.scale = kScale;
        call.out = reinterpret_cast<std::byte*>(result.out.data());
        call.out_dtype = DType::f32;
        call.lse = result.lse.data();
        const Expected<void> done = kernels->absorbed(context_, call);
        EXPECT_TRUE(done) << done.error().message;
        return result;
    }
    // up: [heads, nope + value, latent]
    Result decompressed(const std::vector<float>& queries, DType dtype,
                        const std::vector<float>& up) {
        const std::vector<std::byte> q = stored(queries, dtype);
        const std::vector<std::byte> w = stored(panels_ ? in_panels(up) : up, DType::bf16);
        Result result{std::vector<float>(kQueries * kHeads * kHead.value),
                      std::vector<float>(kQueries * kHeads)};
        DecompressedCall call;
        call.rows = rows_;
        call.heads = kHeads;
        call.q = q.data();
        call.q_dtype = dtype;
        call.kv = kv;
        call.up_key = {
            .format = {.code = WeightCode::bf16},
            .layout = panels_ ? linalg::WeightLayout::panels : linalg::WeightLayout::rows,
            .count = kHeads,
            .n = kHead.nope,
            .k = kv.dims.latent,
            .matrix_bytes = kHead.outputs() * kv.dims.latent * 2,
            .data = w.data()};
        call.up_value = call.up_key;
        call.up_value.n = kHead.value;
        call.up_value.data += kHead.nope * kv.dims.latent * 2;
        call.scale = kScale;
        call.out = reinterpret_cast<std::byte*>(result.out.data());
        call.out_dtype = DType::f32;
        call.lse = result.lse.data();
        const Expected<void> done = kernels->decompressed(context_, call);
        EXPECT_TRUE(done) << done.error().message;
        return result;
    }

    KvPages kv;
    std::unique_ptr<Kernels> kernels;

  private:
    // [heads, nope + value, latent] in the panels that the CPU reads; both halves are whole panels.
    std::vector<float> in_panels(const std::vector<float>& rows) const {
        const std::int64_t latent = kv.dims.latent;
        std::vector<float> packed(rows.size());
        for (std::int64_t at = 0; at < std::ssize(rows); ++at) {
            const std::int64_t row = at / latent;
            const std::int64_t first = row / linalg::kPanel * linalg::kPanel * latent;
            const std::int64_t place =
                linalg::place_in_panel(WeightCode::bf16, at % latent, row % linalg::kPanel);
            packed[static_cast<std::size_t>(first + place)] = rows[static_cast<std::size_t>(at)];
        }
        return packed;
    }
    static std::size_t size(KvFormat format, const KeyDims& dims) {
        return static_cast<std::size_t>(kPages * page_stride_bytes(format, kTokens, dims));
    }

    bool panels_;
    std::vector<std::byte> memory_;
    std::vector<std::int64_t> slots_;
    RaggedRows rows_;
    const std::int32_t indptr_[2] = {0, kQueries}, table_[3] = {3, 0, 2};
    const std::int32_t length_ = kLength;
    const MaskKind mask_ = MaskKind::causal;
    CpuDevice device_{1};
    const Capacities most_{.heads = kHeads,
                           .head_dims = kHead,
                           .rows = 1,
                           .tokens = kQueries,
                           .max_q_len = kQueries,
                           .max_kv_len = kLength};
    Arena arena_{*device_.allocate(kernels->scratch_bytes(most_))};
    OpContext context_{device_, arena_};
};

std::vector<float> normal(Random& random, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = random.normal();
    return values;
}

class MlaWidths : public testing::TestWithParam<Implementation> {
  protected:
    DType query() const {
        if (GetParam().format == KvFormat::f32) return DType::f32;
        return GetParam().format == KvFormat::fp16 ? DType::f16 : DType::bf16;
    }
    void SetUp() override {
        narrow.append(keys);
        wide.append(widened(keys, kNarrow.key(), kKey, kNarrow.latent));
    }

    Random random{71};
    std::vector<float> keys = normal(random, kLength* kNarrow.key());
    Problem narrow{GetParam(), kNarrow}, wide{GetParam(), KeyDims{}};
};
INSTANTIATE_TEST_SUITE_P(All, MlaWidths, testing::ValuesIn(usual_widths(all_implementations())),
                         implementation_name);

TEST_P(MlaWidths, SlotsHoldTheSameNumbersAlsoWhenTheyMove) {
    const std::vector<std::int64_t> source = {49, 50, 3}, destination = {48, 49, 50};
    narrow.compact(source, destination);
    wide.compact(source, destination);
    for (std::int64_t slot = 48; slot < 64; ++slot) {
        std::vector<double> got = narrow.slot(slot), want = wide.slot(slot);
        want.erase(want.begin() + kNarrow.latent, want.begin() + kLatent);
        EXPECT_EQ(got, want) << slot;
    }
}

TEST_P(MlaWidths, AbsorbedAttentionHasTheBitsOfAWiderProblem) {
    const std::vector<float> queries = normal(random, kQueries * kHeads * kNarrow.key());
    const Result got = narrow.absorbed(queries, query());
    const Result want =
        wide.absorbed(widened(queries, kNarrow.key(), kKey, kNarrow.latent), query());
    EXPECT_EQ(widened(got.out, kNarrow.latent, kLatent, kNarrow.latent), want.out);
    EXPECT_EQ(got.lse, want.lse);
    EXPECT_NE(got.out[0], 0.0f);
}

TEST_P(MlaWidths, DecompressedAttentionHasTheBitsOfAWiderProblem) {
    const std::vector<float> up = normal(random, kHeads * kHead.outputs() * kNarrow.latent);
    const std::vector<float> queries =
        normal(random, kQueries * kHeads * (kHead.nope + kNarrow.rope));
    const Result got = narrow.decompressed(queries, query(), up);
    const Result want =
        wide.decompressed(queries, query(), widened(up, kNarrow.latent, kLatent, kNarrow.latent));
    EXPECT_EQ(got.out, want.out);
    EXPECT_EQ(got.lse, want.lse);
    EXPECT_NE(got.out[0], 0.0f);
}

// A plane without rotated columns, as a row of codes and one scale: written and moved on every CPU.
TEST(MlaPlanes, ColumnsWithoutRopeAreAppendedAndMovedByEveryImplementation) {
    constexpr KeyDims kMarks{128, 0};
    Random random(72);
    const std::vector<float> values = normal(random, 4 * kMarks.latent);
    const std::vector<std::int64_t> slots = {15, 16, 17, 33};
    const std::int64_t source[] = {17, 33}, destination[] = {16, 17};
    for (const KvFormat format : {KvFormat::bf16, KvFormat::fp8_token}) {
        std::vector<std::vector<std::byte>> images;
        for (const bool reference : {true, false}) {
            const auto kernels =
                reference ? make_reference_kernels() : make_cpu_kernels(best_cpu_variant());
            const std::int64_t stride = page_stride_bytes(format, 16, kMarks);
            EXPECT_EQ(stride, format == KvFormat::bf16 ? 16 * 256 : 17 * 128);  // 16 · 132, rounded
            std::vector<std::byte>& memory = images.emplace_back(3 * stride, std::byte{0x11});
            const KvPages kv{memory.data(), format, 16, stride, 3, 1.0f, kMarks};
            CpuDevice device(2);
            Arena arena{Buffer()};
            OpContext context{device, arena};
            AppendCall append;
            append.tokens = 4;
            append.latent = values.data();
            append.latent_stride = kMarks.latent;
            append.slot = slots.data();
            append.kv = kv;
            ASSERT_TRUE(kernels->append(context, append));
            const auto slot = [&](std::int64_t index) {
                std::vector<double> columns(kMarks.latent);
                read_slot(kv, index, columns.data());
                return columns;
            };
            const auto second = slot(17), third = slot(33);
            EXPECT_NEAR(slot(15)[5], values[5], 0.02 * 4);
            ASSERT_TRUE(kernels->compact(context, {2, source, destination, kv}));
            EXPECT_EQ(slot(16), second);
            EXPECT_EQ(slot(17), third);
        }
        EXPECT_EQ(images[0], images[1]);
    }
}

}  // namespace
}  // namespace espalier::conformance
