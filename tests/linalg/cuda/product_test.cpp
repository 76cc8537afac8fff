// SPDX-License-Identifier: Apache-2.0
// CUDA products against the double oracle, with bounds derived from the number of roundings; what
// they leave alone; what packing refuses.
#include "linalg/cuda/product.hpp"

#include <cmath>

#include "base/portable_math.hpp"
#include "linalg/cuda/on_device.hpp"

namespace espalier::linalg {
namespace {

struct Shape {
    std::int64_t rows, n, k, x_extra, y_extra;
};

// Ends inside a tile of outputs, a chunk of inputs, 8 of them; every number of tiles of tokens; one
// segment, several of one chunk, of two, of unequal length, fourteen.
constexpr Shape kShapes[] = {
    {1, 1, 1, 0, 0},        {1, 17, 3, 1, 0},       {2, 16, 128, 0, 5},   {5, 33, 129, 3, 1},
    {7, 130, 257, 0, 2},    {24, 48, 512, 8, 0},    {25, 47, 1000, 0, 3}, {61, 20, 1023, 5, 0},
    {200, 19, 304, 0, 0},   {3, 300, 6504, 8, 1},   {9, 40, 2048, 0, 0},  {33, 100, 1408, 0, 7},
    {130, 140, 1544, 8, 0}, {300, 130, 640, 24, 2}, {64, 20, 7168, 0, 0}, {129, 33, 64, 0, 1},
    {150, 65, 5000, 0, 0},  {70, 4300, 136, 0, 0},  {12, 9000, 72, 0, 0},
};

// Σ |x·w| over k: what the bound is relative to.
double magnitude(Activations& x, std::int64_t row, const AnyTensor& w, std::int64_t n) {
    double sum = 0;
    for (std::int64_t k = 0; k < x.matrix().cols; ++k)
        sum += std::abs(double{x.value(row, k)} * w.weight(n, k));
    return sum;
}

// Tensor cores cut each of 17 terms (16 products and the sum so far) to 24 bits of the largest: 17
// times 2⁻²³ of it per 16 inputs. f32 weights: one rounding per input and a tree of five. Codes add
// two roundings per 32 or 128 inputs that share a scale (and the scale's own, where a matrix has
// one more), segments one each; accumulating and the oracle's own rounding are two.
double chain_bound(std::int64_t k, double size) {
    const double steps = static_cast<double>((k + 15) / 16);
    const double groups = static_cast<double>((k + 31) / 32);
    return 1.01 * (34.0 * steps + 2.0 * groups + 16.0 + 3.0) * 0x1p-24 * size;
}

double store_bound(DType y, double value) {
    if (y == DType::bf16) return 0x1p-8 * std::abs(value);
    if (y == DType::f16) return 0x1p-11 * std::abs(value) + 0x1p-24;
    return 0x1p-24 * std::abs(value);
}

class CudaProduct : public testing::TestWithParam<WeightKind> {
  protected:
    void expect_product(const Shape& shape, DType y_dtype, Store store) {
        SCOPED_TRACE(std::to_string(shape.rows) + "×" + std::to_string(shape.n) + "×" +
                     std::to_string(shape.k) + " to " + std::string(name_of(y_dtype)));
        if (kind_.codes != nullptr && shape.k % 2 != 0) return;  // rows of whole bytes
        const AnyTensor w(kind_, shape.n, shape.k, 11);
        const Weight panels = pack_or_die(cpu_, w.view());
        const Weight packed = pack_on(*gpu_, {w.view()});
        Activations x =
            Activations::random(kind_.input(), shape.rows, shape.k, shape.k + shape.x_extra, 12);
        const auto fresh_y = [&] {
            return Activations::random(y_dtype, shape.rows, shape.n, shape.n + shape.y_extra, 13);
        };
        Activations y = fresh_y(), expected = fresh_y(), before = fresh_y();
        const DeviceActivations device_x(*gpu_, x), device_y(*gpu_, y);
        cuda::product(gpu_->stream(), device_x.matrix(), packed.view(), device_y.matrix(), store);
        device_y.download(y);
        reference_product(x.matrix(), panels.view(), expected.matrix(), store);
        for (std::int64_t row = 0; row < shape.rows; ++row) {
            for (std::int64_t n = 0; n < shape.n; ++n) {
                const double want = expected.value(row, n), got = y.value(row, n);
                // The largest shapes have a million outputs: an ever changing part of them.
                if (shape.rows * shape.n > 4000 && (row * 7 + n) % 13 != 0) {
                    ASSERT_TRUE(std::isfinite(got)) << "row " << row << " output " << n;
                    continue;
                }
                double size = magnitude(x, row, w, n);
                if (store == Store::accumulate) size += std::abs(before.value(row, n));
                const double bound = chain_bound(shape.k, size) +
                                     store_bound(y_dtype, std::max(std::abs(want), std::abs(got)));
                ASSERT_LE(std::abs(want - got), bound) << "row " << row << " output " << n;
            }
            // Bytes between the rows belong to no row: still the bytes put there.
            ASSERT_TRUE(same_row(y, row, before, row, shape.y_extra, shape.n, shape.n));
        }
    }

    WeightKind kind_ = GetParam();
    CpuDevice cpu_{2};
    std::unique_ptr<Device> gpu_ = gpu_or_throw();
};

TEST_P(CudaProduct, AgreesWithTheOracle) {
    for (const Shape& shape : kShapes) expect_product(shape, DType::f32, Store::assign);
}

TEST_P(CudaProduct, AccumulatesInPlace) {
    for (const Shape& shape : {kShapes[3], kShapes[5], kShapes[12], kShapes[16]})
        expect_product(shape, DType::f32, Store::accumulate);
}

TEST_P(CudaProduct, RoundsOnceToTheOutputsType) {
    for (const Shape& shape : {kShapes[4], kShapes[11], kShapes[12], kShapes[13]})
        for (const DType y : {DType::bf16, DType::f16}) expect_product(shape, y, Store::assign);
}

// Joined sources of 40 and 24 outputs whose scales change inside a tile of 16, a transposed one,
// and one that begins inside a block of scales.
TEST_P(CudaProduct, PacksJoinedAndTransposedSources) {
    if (kind_.codes != nullptr) return;
    const StoredTensor stored(kind_.dtype, 700, 300, 3), turned(kind_.dtype, 256, 200, 4);
    const std::int64_t k = 256;
    const std::vector<WeightSource> sources = {
        stored.view(128, 0, 40, k), stored.view(300, 0, 24, k), turned.view(0, 60, k, 100, true)};
    const std::span<const WeightSource> joined(sources);
    auto packed = cuda::pack(*gpu_, WeightStack(&joined, 1));
    ASSERT_TRUE(packed) << packed.error().message;
    auto panels = pack_panels(cpu_, WeightStack(&joined, 1));
    ASSERT_TRUE(panels) << panels.error().message;
    Activations x = Activations::random(kind_.input(), 9, k, k, 5);
    Activations y(DType::f32, 9, 164, 164), expected(DType::f32, 9, 164, 164);
    const DeviceActivations device_x(*gpu_, x), device_y(*gpu_, y);
    cuda::product(gpu_->stream(), device_x.matrix(), packed->view(), device_y.matrix(),
                  Store::assign);
    device_y.download(y);
    reference_product(x.matrix(), panels->view(), expected.matrix(), Store::assign);
    // |x·w| summed over 256 inputs of about 1 is below 2,000.
    for (std::int64_t row = 0; row < 9; ++row)
        for (std::int64_t n = 0; n < 164; ++n)
            ASSERT_NEAR(y.value(row, n), expected.value(row, n), chain_bound(k, 2000))
                << "row " << row << " output " << n;
}

TEST_P(CudaProduct, NoRowsIsNoWork) {
    const AnyTensor w(kind_, 20, 136, 1);
    const Weight packed = pack_on(*gpu_, {w.view()});
    const Matrix x{nullptr, kind_.input(), 0, 136, 136}, y{nullptr, DType::f32, 0, 20, 20};
    cuda::product(gpu_->stream(), x, packed.view(), y, Store::assign);
    cuda::stacked_product(gpu_->stream(), x, 0, packed.view(), y, 0);
    const DeviceInts indptr(*gpu_, {0, 0});
    cuda::expert_product(gpu_->stream(), x, indptr.data(), indptr.data(), packed.view(), y);
    expect_done(gpu_->synchronize(gpu_->stream()));
}

std::vector<WeightKind> kinds() {
    std::vector<WeightKind> all(std::begin(kWeightTypes), std::end(kWeightTypes));
    all.insert(all.end(), std::begin(kGroupedKinds), std::end(kGroupedKinds));
    return all;
}
INSTANTIATE_TEST_SUITE_P(All, CudaProduct, testing::ValuesIn(kinds()),
                         [](const auto& param) { return param.param.name(); });

// Two sources with scales of their own, one after the other, and dealt for a gated product.
void expect_joined(Device& gpu, const std::vector<WeightSource>& sources, std::int64_t rows) {
    const std::int64_t k = sources[0].k, half = sources[0].n, n = 2 * half;
    const std::span<const WeightSource> joined(sources);
    CpuDevice cpu(1);
    const Weight panels = pack_panels(cpu, WeightStack(&joined, 1)).value();
    const Weight packed = cuda::pack(gpu, WeightStack(&joined, 1)).value();
    const Weight dealt = cuda::pack_gated(gpu, WeightStack(&joined, 1)).value();
    Activations x = Activations::random(DType::bf16, rows, k, k, 5);
    Activations y(DType::f32, rows, n, n), expected(DType::f32, rows, n, n),
        gated(DType::f32, rows, half, half);
    const DeviceActivations device_x(gpu, x), device_y(gpu, y), device_gated(gpu, gated);
    Buffer memory = gpu.allocate(cuda::scratch_bytes(rows, k)).value();
    const cuda::Scratch scratch{memory.data(), memory.bytes()};
    cuda::product(gpu.stream(), device_x.matrix(), packed.view(), device_y.matrix(), Store::assign);
    cuda::gated_product(gpu.stream(), device_x.matrix(), dealt.view(), device_gated.matrix(), {},
                        scratch);
    device_y.download(y);
    device_gated.download(gated);
    reference_product(x.matrix(), panels.view(), expected.matrix(), Store::assign);
    for (std::int64_t row = 0; row < rows; ++row) {
        // |x·w| summed over 328 inputs: int8 codes times their scales are below 13.
        for (std::int64_t i = 0; i < n; ++i)
            ASSERT_NEAR(y.value(row, i), expected.value(row, i), chain_bound(k, 6000))
                << "row " << row << " of " << rows << ", output " << i;
        for (std::int64_t i = 0; i < half; ++i)
            ASSERT_EQ(gated.value(row, i), portable_silu(y.value(row, i)) * y.value(row, i + half))
                << "row " << row << " of " << rows << ", column " << i;
    }
}

// Gates that are every finite bf16 number: the kernels for many tokens divide by a way of their own
// where numbers allow it.
TEST(CudaPack, GatesEveryNumber) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    constexpr std::int64_t kRows = 2048, kInputs = 40, kHalf = 32;
    StoredTensor w(DType::bf16, 2 * kHalf, kInputs, 1);
    std::fill(w.bytes().begin(), w.bytes().end(), std::byte{0});
    for (std::int64_t n = 0; n < 2 * kHalf; ++n)  // column n and, for up, one that is always 1
        write_element(w.bytes().data() + 1 + (n * kInputs + std::min(n, kHalf)) * 2, DType::bf16,
                      1.0f);
    const WeightSource source = w.view();
    const std::span<const WeightSource> one(&source, 1);
    const Weight packed = cuda::pack(*gpu, WeightStack(&one, 1)).value();
    const Weight dealt = cuda::pack_gated(*gpu, WeightStack(&one, 1)).value();
    Activations x(DType::bf16, kRows, kInputs, kInputs);
    x.fill(std::byte{0});
    for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t i = 0; i < kHalf; ++i) {
            const auto bits = static_cast<std::uint16_t>(row * kHalf + i);
            if ((bits & 0x7f80u) != 0x7f80u) std::memcpy(x.at(row, i), &bits, 2);
        }
        write_element(x.at(row, kHalf), DType::bf16, 1.0f);
    }
    Activations y(DType::f32, kRows, 2 * kHalf, 2 * kHalf), gated(DType::f32, kRows, kHalf, kHalf);
    const DeviceActivations device_x(*gpu, x), device_y(*gpu, y), device_gated(*gpu, gated);
    Buffer memory = gpu->allocate(cuda::scratch_bytes(kRows, kInputs)).value();
    for (const std::size_t bytes : {memory.bytes(), std::size_t{0}}) {
        cuda::product(gpu->stream(), device_x.matrix(), packed.view(), device_y.matrix(),
                      Store::assign);
        cuda::gated_product(gpu->stream(), device_x.matrix(), dealt.view(), device_gated.matrix(),
                            {}, {memory.data(), bytes});
        device_y.download(y);
        device_gated.download(gated);
        for (std::int64_t row = 0; row < kRows; ++row)
            for (std::int64_t i = 0; i < kHalf; ++i) {
                const float gate = y.value(row, i), up = y.value(row, i + kHalf);
                ASSERT_EQ(up, 1.0f);
                ASSERT_EQ(gate, x.value(row, i));
                ASSERT_EQ(__builtin_bit_cast(std::uint32_t, gated.value(row, i)),
                          __builtin_bit_cast(std::uint32_t, portable_silu(gate) * up))
                    << gate;
            }
    }
}

TEST(CudaPack, JoinsSourcesAndDealsGateAndUp) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    constexpr std::int64_t kInputs = 328, kHalf = 40;
    for (const std::int64_t rows : {9, 40, 200, 1600}) {
        for (const DType dtype : {DType::bf16, DType::e4m3}) {
            // The second e4m3 source's scales change inside eight outputs.
            const AnyTensor first(dtype, 64, kInputs, 3), second(dtype, 200, kInputs, 4);
            expect_joined(*gpu, {first.rows(5, kHalf), second.rows(100, kHalf)}, rows);
            expect_joined(*gpu, {first.rows(8, kHalf), second.rows(16, kHalf)}, rows);
        }
        for (const GroupedKind& kind : kGroupedKinds) {
            SCOPED_TRACE(kind.name);
            GroupedTensor first(kind, 64, kInputs, 3);
            const GroupedTensor second(kind, 64, kInputs, 4);
            if (kind.format.code == WeightCode::e2m1)  // negative scales
                for (std::size_t i = 0; i < first.scale_bytes().size(); i += 3)
                    first.scale_bytes()[i] |= std::byte{0x80};
            expect_joined(*gpu, {first.rows(5, kHalf), second.rows(9, kHalf)}, rows);
        }
    }
}

// Every code of every kind at every input of a chunk, by every kernel, times one: exact.
TEST(CudaPack, EveryGroupedCodeIsItself) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    constexpr std::int64_t kOutputs = 256, kInputs = 128;
    for (const GroupedKind& kind : kGroupedKinds) {
        SCOPED_TRACE(kind.name);
        GroupedTensor w(kind, kOutputs, kInputs, 6);
        const bool four = facts_of(kind.format.code).bits == 4;
        for (std::int64_t n = 0; n < kOutputs; ++n)
            for (std::int64_t k = 0; k < kInputs; ++k) {
                const auto code = static_cast<int>(n + 37 * k);
                w.set(n, k, four ? code % 16 - 8 : code % 256 - 128);
            }
        const Weight packed = pack_on(*gpu, {w.view()});
        Activations x(DType::bf16, kInputs, kInputs, kInputs),
            y(DType::f32, kInputs, kOutputs, kOutputs);
        for (std::int64_t k = 0; k < kInputs; ++k) write_element(x.at(k, k), DType::bf16, 1.0f);
        const DeviceActivations device_x(*gpu, x), device_y(*gpu, y);
        for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{40}, kInputs}) {
            for (std::int64_t row = 0; row < kInputs; row += rows) {
                const std::int64_t count = std::min(rows, kInputs - row);
                cuda::product(gpu->stream(), device_x.matrix().slice(row, count), packed.view(),
                              device_y.matrix().slice(row, count), Store::assign);
            }
            device_y.download(y);
            for (std::int64_t k = 0; k < kInputs; ++k)
                for (std::int64_t n = 0; n < kOutputs; ++n)  // NVFP4: two scales, rounded once here
                    ASSERT_FLOAT_EQ(y.value(k, n), w.code(n, k) * w.scale(n, k))
                        << "input " << k << " output " << n;
        }
    }
}

// Every code of e4m3 in both halves of a fragment, at every input of a chunk, times one: exact.
TEST(CudaPack, EveryCodeIsItself) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    constexpr std::int64_t kOutputs = 256, kInputs = 128;
    std::vector<std::byte> codes(kOutputs * kInputs);
    const auto code_at = [](std::int64_t n, std::int64_t k) {
        const auto code = static_cast<std::uint8_t>(n + 37 * k);
        return (code & 0x7f) == 0x7f ? std::uint8_t{0x80} : code;
    };
    for (std::int64_t n = 0; n < kOutputs; ++n)
        for (std::int64_t k = 0; k < kInputs; ++k)
            codes[static_cast<std::size_t>(n * kInputs + k)] = std::byte{code_at(n, k)};
    const float scales[] = {0.5f, 3.0f};
    const WeightSource source{.data = codes.data(),
                              .format = kFp8Blocks,
                              .n = kOutputs,
                              .k = kInputs,
                              .row_stride = kInputs,
                              .scales = reinterpret_cast<const std::byte*>(scales),
                              .scale_stride = 1};
    const Weight packed = pack_on(*gpu, {source});
    Activations x(DType::bf16, kInputs, kInputs, kInputs),
        y(DType::f32, kInputs, kOutputs, kOutputs);
    for (std::int64_t k = 0; k < kInputs; ++k) write_element(x.at(k, k), DType::bf16, 1.0f);
    const DeviceActivations device_x(*gpu, x), device_y(*gpu, y);
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{40}, kInputs}) {
        for (std::int64_t row = 0; row < kInputs; row += rows) {
            const std::int64_t count = std::min(rows, kInputs - row);
            cuda::product(gpu->stream(), device_x.matrix().slice(row, count), packed.view(),
                          device_y.matrix().slice(row, count), Store::assign);
        }
        device_y.download(y);
        for (std::int64_t k = 0; k < kInputs; ++k)
            for (std::int64_t n = 0; n < kOutputs; ++n)
                ASSERT_EQ(y.value(k, n), to_float(E4m3{code_at(n, k)}) * scales[n / 128])
                    << "input " << k << " output " << n;
    }
}

TEST(CudaPack, RefusesByName) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    StoredTensor stored(DType::e4m3, 140, 256, 1);
    const auto refusal = [&](const WeightSource& source) {
        const std::span<const WeightSource> one(&source, 1);
        auto packed = cuda::pack(*gpu, WeightStack(&one, 1));
        return packed ? std::string("packed") : packed.error().message;
    };
    EXPECT_EQ(refusal(stored.view()), "packed");
    WeightSource source = stored.view();
    source.format = {.code = WeightCode::e4m3};
    EXPECT_NE(refusal(source).find("e4m3"), std::string::npos) << refusal(source);
    source.format = kFp8Blocks;
    source.format.group_k = 64;
    source.scale_stride = 4;
    EXPECT_NE(refusal(source).find("128 × 64"), std::string::npos) << refusal(source);
    // Groups that are no whole steps, and scales that are no numbers.
    const GroupedTensor sixteen({"", grouped(WeightCode::int4, 16, ScaleType::bf16), true}, 20, 64,
                                2);
    EXPECT_NE(refusal(sixteen.view()).find("int4 weights with scales of 1 × 16"),
              std::string::npos);
    for (const GroupedKind& kind : kGroupedKinds) {
        GroupedTensor bad(kind, 20, 64, 3);
        EXPECT_EQ(refusal(bad.view()), "packed");
        std::fill(bad.scale_bytes().end() - 4, bad.scale_bytes().end(), std::byte{0xff});
        EXPECT_NE(refusal(bad.view()).find("no finite number"), std::string::npos) << kind.name;
    }
    // One NaN code, in the last row.
    stored.bytes()[1 + 139 * 256 + 255] = std::byte{0xff};
    EXPECT_NE(refusal(stored.view()).find("NaN"), std::string::npos);
}

TEST(CudaPack, StrangersLayoutsAreRefused) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    CpuDevice cpu(1);
    const StoredTensor w(DType::bf16, 16, 128, 1);
    const Weight panels = pack_or_die(cpu, w.view());
    const Activations x(DType::bf16, 1, 128, 128), y(DType::f32, 1, 16, 16);
    EXPECT_THROW(cuda::product(gpu->stream(), x.matrix(), panels.view(), y.matrix(), Store::assign),
                 CheckFailure);
}

}  // namespace
}  // namespace espalier::linalg
