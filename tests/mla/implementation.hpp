// SPDX-License-Identifier: Apache-2.0
// The implementations under test (the oracle and every CPU variant of this machine, with each cache
// format they take) and running one of them on a batch, in an arena of exactly the bytes it asked
// for.
#pragma once

#include <optional>

#include "mla/problem.hpp"

namespace espalier::mla {

inline Capacities capacities(const RaggedRows& rows, int heads, int threads) {
    return {.heads = heads,
            .rows = rows.rows,
            .tokens = rows.token_end,
            .max_q_len = rows.max_q_len,
            .max_kv_len = rows.max_kv_len,
            .workers = threads};
}

struct Implementation {
    std::optional<CpuVariant> variant;  // none: the oracle
    KvFormat format = KvFormat::bf16;

    bool slow() const { return variant == CpuVariant::portable; }
    std::unique_ptr<Kernels> make() const {
        return variant ? make_cpu_kernels(*variant) : make_reference_kernels();
    }
    std::string name() const {
        return std::string(variant ? espalier::name_of(*variant) : "oracle") + "_" +
               std::string(name_of(format));
    }
};

inline constexpr KvFormat kFormats[] = {KvFormat::f32, KvFormat::bf16, KvFormat::fp16,
                                        KvFormat::fp8_tensor, KvFormat::fp8_token};

inline std::vector<Implementation> cpu_implementations() {
    std::vector<Implementation> result;
    for (const CpuVariant variant :
         {CpuVariant::portable, CpuVariant::avx2, CpuVariant::avx512, CpuVariant::avx512_bf16})
        for (const KvFormat format : kFormats) {
            // bf16 dot products serve the caches whose numbers bf16 holds; the others are avx512's.
            const bool own = variant != CpuVariant::avx512_bf16 ||
                             (format != KvFormat::f32 && format != KvFormat::fp16);
            if (own && variant <= best_cpu_variant()) result.push_back({variant, format});
        }
    return result;
}

inline std::vector<Implementation> all_implementations() {
    std::vector<Implementation> result = cpu_implementations();
    for (const KvFormat format : kFormats) result.push_back({std::nullopt, format});
    return result;
}

inline std::string implementation_name(const testing::TestParamInfo<Implementation>& info) {
    return info.param.name();
}

struct Result {
    std::int64_t columns = 0;
    int heads = 0;
    std::vector<float> out;  // [tokens, heads, columns]
    std::vector<float> lse;  // [tokens, heads]

    const float* row(std::int64_t token, int head) const {
        return out.data() + (token * heads + head) * columns;
    }
    float lse_of(std::int64_t token, int head) const {
        return lse[static_cast<std::size_t>(token * heads + head)];
    }
};

// Scratch starts as NaN in every format.
inline Arena exact_arena(std::size_t bytes) {
    const std::size_t rounded = std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
    void* memory = std::aligned_alloc(64, rounded);
    std::memset(memory, 0xff, rounded);
    return Arena(Buffer(memory, rounded, [](void* data, std::size_t) { std::free(data); }));
}

inline std::vector<float> widened(const std::vector<std::byte>& bytes, DType dtype) {
    std::vector<float> values(bytes.size() / bytes_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto get = [&]<typename T>(T stored) {
            std::memcpy(&stored, bytes.data() + i * sizeof(T), sizeof(T));
            values[i] = to_float(stored);
        };
        if (dtype == DType::f32) get(float{});
        if (dtype == DType::bf16) get(Bf16{});
        if (dtype == DType::f16) get(Fp16{});
    }
    return values;
}

// Outputs start as poison, so what a kernel forgets to write is seen.
inline Expected<Result> try_absorbed(const Kernels& kernels, Batch& batch, int threads,
                                     DType out_dtype = DType::f32, float scale = 0.0721687836f) {
    Result result{kLatent, batch.heads(), {}, {}};
    std::vector<std::byte> out(
        static_cast<std::size_t>(batch.tokens() * batch.heads() * kLatent) * bytes_of(out_dtype),
        std::byte{0xff});
    result.lse.assign(static_cast<std::size_t>(batch.tokens() * batch.heads()), -123.0f);
    AbsorbedCall call;
    call.rows = batch.view();
    call.heads = batch.heads();
    call.q = batch.query();
    call.q_dtype = query_dtype(batch.kv().format);
    call.kv = batch.kv();
    call.scale = scale;
    call.out = out.data();
    call.out_dtype = out_dtype;
    call.lse = result.lse.data();
    ThreadPool pool(threads);
    Arena arena = exact_arena(kernels.scratch_bytes(capacities(call.rows, call.heads, threads)));
    OpContext context{pool, arena};
    ESPALIER_RETURN_IF_ERROR(kernels.absorbed(context, call));
    result.out = widened(out, out_dtype);
    return result;
}

inline Result run_absorbed(const Kernels& kernels, Batch& batch, int threads = 1,
                           DType out_dtype = DType::f32, float scale = 0.0721687836f) {
    Expected<Result> result = try_absorbed(kernels, batch, threads, out_dtype, scale);
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    return result ? *result : Result{};
}

// Equality of bits of one token's outputs and lse.
inline testing::AssertionResult same_bits(const Result& a, std::int64_t a_token, const Result& b,
                                          std::int64_t b_token) {
    for (int head = 0; head < a.heads; ++head) {
        if (std::bit_cast<std::uint32_t>(a.lse_of(a_token, head)) !=
            std::bit_cast<std::uint32_t>(b.lse_of(b_token, head)))
            return testing::AssertionFailure()
                   << "head " << head << ": lse " << a.lse_of(a_token, head) << " and "
                   << b.lse_of(b_token, head);
        for (std::int64_t c = 0; c < a.columns; ++c) {
            const float x = a.row(a_token, head)[c];
            const float y = b.row(b_token, head)[c];
            if (std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y))
                return testing::AssertionFailure()
                       << "head " << head << ", column " << c << ": " << x << " and " << y;
        }
    }
    return testing::AssertionSuccess();
}

inline testing::AssertionResult all_same_bits(const Result& a, const Result& b) {
    const auto tokens = static_cast<std::int64_t>(a.lse.size()) / std::max(1, a.heads);
    if (a.lse.size() != b.lse.size()) return testing::AssertionFailure() << "sizes differ";
    for (std::int64_t token = 0; token < tokens; ++token)
        if (testing::AssertionResult same = same_bits(a, token, b, token); !same)
            return testing::AssertionFailure() << "token " << token << ": " << same.message();
    return testing::AssertionSuccess();
}

// Relative L2 per (token, head) against the oracle, and lse within 1e-3 + 2^-18 · max|score|; where
// the oracle sees nothing, exact zeros and -inf.
inline testing::AssertionResult close_to(const Result& result, const Result& oracle, double bound,
                                         double largest_score) {
    const auto tokens = static_cast<std::int64_t>(oracle.lse.size()) / oracle.heads;
    for (std::int64_t token = 0; token < tokens; ++token)
        for (int head = 0; head < oracle.heads; ++head) {
            double error = 0.0;
            double norm = 0.0;
            for (std::int64_t c = 0; c < oracle.columns; ++c) {
                const double want = oracle.row(token, head)[c];
                const double difference = static_cast<double>(result.row(token, head)[c]) - want;
                error += difference * difference;
                norm += want * want;
            }
            if (!(error <= bound * bound * norm))
                return testing::AssertionFailure()
                       << "token " << token << ", head " << head << ": relative L2 "
                       << std::sqrt(error / norm) << " > " << bound;
            const double want = oracle.lse_of(token, head);
            const double got = result.lse_of(token, head);
            if (want == got) continue;  // -inf included
            if (!(std::fabs(got - want) <= 1e-3 + 0x1p-18 * largest_score))
                return testing::AssertionFailure() << "token " << token << ", head " << head
                                                   << ": lse " << got << ", oracle " << want;
        }
    return testing::AssertionSuccess();
}

// 16-bit and e4m3 caches: the contract's bounds. f32: scores are chains of 576 roundings of partial
// sums near 24, each 2^-25 relative: 24·24·2^-25·scale ≈ 1.3e-6 in a score and as much in its
// probability; sums over 700 keys add √700·2^-25 ≈ 0.8e-6, and without fused multiply-add all of it
// doubles: 1e-5 is three deviations. Peaked queries are 4 times as large, and so are their scores'
// errors.
constexpr double accuracy_bound(KvFormat format, Spread spread = Spread::normal) {
    if (format == KvFormat::fp8_tensor || format == KvFormat::fp8_token) return 4e-3;
    if (format != KvFormat::f32) return 3.5e-3;
    return spread == Spread::peaked ? 4e-5 : 1e-5;
}

}  // namespace espalier::mla
