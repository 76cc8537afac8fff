// SPDX-License-Identifier: Apache-2.0
// Operations whose results stand alone: the same steps as on the CPU, so but for sines and cosines
// the same bits.
#include "base/cuda/launch.hpp"
#include "base/portable_math.hpp"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/kernels.hpp"

namespace espalier::ops::cuda {
namespace {

constexpr std::int64_t kRopePairs = 32;

__global__ void embed_kernel(const std::int32_t* tokens, EmbeddingTable table, Matrix out) {
    for_elements(out.rows, out.cols, [&](std::int64_t t, std::int64_t d) {
        const std::int64_t at = tokens[t] * table.hidden + d;
        float& to = row_of(out, t)[d];
        if (table.dtype == DType::f32)
            to = reinterpret_cast<const float*>(table.data)[at];
        else if (table.dtype == DType::bf16)
            to = to_float(reinterpret_cast<const Bf16*>(table.data)[at]);
        else
            to = to_float(reinterpret_cast<const Fp16*>(table.data)[at]);
    });
}

__global__ void rope_angles_kernel(const std::int32_t* position, std::int64_t tokens, RopeRule rule,
                                   Matrix cos_sin) {
    for_elements(tokens, kRopePairs, [&](std::int64_t t, std::int64_t i) {
        const float angle =
            static_cast<float>(position[t]) * rule.inverse_frequency[static_cast<std::size_t>(i)];
        double sine, cosine;
        sincos(static_cast<double>(angle), &sine, &cosine);
        row_of(cos_sin, t)[2 * i] = static_cast<float>(cosine) * rule.magnitude;
        row_of(cos_sin, t)[2 * i + 1] = static_cast<float>(sine) * rule.magnitude;
    });
}

// A thread has a pair, so `to` may be `from`.
__global__ void rope_kernel(Matrix from, std::int64_t from_step, std::int32_t heads, Matrix cos_sin,
                            Matrix to, std::int64_t to_step) {
    for_elements(from.rows, heads * kRopePairs, [&](std::int64_t t, std::int64_t place) {
        const std::int64_t head = place / kRopePairs;
        rotate_pair(row_of(from, t) + head * from_step, row_of(cos_sin, t), place % kRopePairs, to,
                    t, head * to_step);
    });
}

// Per head `width` columns to convert, then 32 pairs to rotate.
__global__ void split_queries_kernel(Matrix q, std::int32_t heads, std::int32_t width,
                                     Matrix cos_sin, Matrix q_act, Matrix rope_to,
                                     std::int64_t rope_step) {
    const auto places = static_cast<std::int32_t>(width + kRopePairs);
    const std::int64_t step = width + 2 * kRopePairs;
    for_elements(q.rows, std::int64_t{heads} * places, [&](std::int64_t t, std::int64_t place) {
        const std::int32_t head = static_cast<std::int32_t>(place) / places;
        const std::int32_t i = static_cast<std::int32_t>(place) % places;
        const float* from = row_of(q, t) + head * step;
        if (i < width)
            store(q_act, t, head * step + i, from[i]);
        else
            rotate_pair(from + width, row_of(cos_sin, t), i - width, rope_to, t, head * rope_step);
    });
}

__device__ void store_four(const Matrix& to, std::int64_t row, std::int64_t col, const float4& v) {
    const auto pair = [](float low, float high) {
        return std::uint32_t{to_bf16(high).bits} << 16 | to_bf16(low).bits;
    };
    *reinterpret_cast<uint2*>(reinterpret_cast<Bf16*>(to.data) + row * to.stride + col) =
        make_uint2(pair(v.x, v.y), pair(v.z, v.w));
}

// The same, four columns a thread: a prompt's queries are 100 MB.
__global__ void split_fours_kernel(Matrix q, std::int32_t heads, std::int32_t width, Matrix cos_sin,
                                   Matrix q_act, Matrix rope_to, std::int64_t rope_step) {
    const auto fours = static_cast<std::int32_t>((width + 2 * kRopePairs) / 4);
    for_elements(q.rows, std::int64_t{heads} * fours, [&](std::int64_t t, std::int64_t place) {
        const std::int32_t head = static_cast<std::int32_t>(place) / fours;
        const std::int32_t i = static_cast<std::int32_t>(place) % fours * 4;
        const float4 v = reinterpret_cast<const float4*>(row_of(q, t))[place];
        if (i < width) return store_four(q_act, t, place * 4, v);
        const float4 angle = *reinterpret_cast<const float4*>(row_of(cos_sin, t) + (i - width));
        store_four(rope_to, t, head * rope_step + i - width,
                   make_float4(v.x * angle.x - v.y * angle.y, v.x * angle.y + v.y * angle.x,
                               v.z * angle.z - v.w * angle.w, v.z * angle.w + v.w * angle.z));
    });
}

// True if four columns from a multiple of four on can be read or written at once.
bool in_fours(const Matrix& matrix) {
    const auto bytes = static_cast<std::uintptr_t>(4 * bytes_of(matrix.dtype));
    return matrix.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(matrix.data) % bytes == 0;
}

__global__ void convert_kernel(Matrix from, std::int64_t from_step, std::int32_t heads,
                               std::int64_t width, Matrix to, std::int64_t to_step) {
    for_elements(from.rows, heads * width, [&](std::int64_t t, std::int64_t place) {
        const std::int64_t head = place / width;
        const std::int64_t i = place % width;
        store(to, t, head * to_step + i, row_of(from, t)[head * from_step + i]);
    });
}

__global__ void swiglu_kernel(Matrix gate_up, Matrix out) {
    for_elements(out.rows, out.cols, [&](std::int64_t r, std::int64_t i) {
        const float* row = row_of(gate_up, r);
        store(out, r, i, portable_silu(row[i]) * row[out.cols + i]);
    });
}

// The order of terms.hpp.
__global__ void add_terms_kernel(Terms terms, Matrix residual) {
    const ExpertRows& experts = terms.experts;
    const SegmentSums& segments = terms.segments;
    const std::int64_t top_k = experts.rows.data != nullptr ? experts.top_k : 0;
    for_elements(residual.rows, residual.cols, [&](std::int64_t t, std::int64_t d) {
        float sum = 0.0f;
        for (std::int64_t i = t * top_k; i < (t + 1) * top_k; ++i)
            if (const std::int64_t row = row_of_choice(experts, i); row >= 0)
                sum += experts.plan.weight[i] * row_of(experts.rows, row)[d];
        if (segments.count > 0) {
            float total = row_of(segments.sums, t)[d];
            for (std::int64_t s = 1; s < segments.count; ++s)
                total += row_of(segments.sums, s * residual.rows + t)[d];
            sum = top_k > 0 ? sum + total : total;
        }
        row_of(residual, t)[d] += sum;
    });
}

template <typename Word>
__global__ void gather_kernel(Matrix x, const std::int32_t* index, Matrix out) {
    for_elements(out.rows, out.cols, [&](std::int64_t g, std::int64_t d) {
        Word* to = reinterpret_cast<Word*>(out.data) + g * out.stride + d;
        const std::int64_t from = index[g];
        *to = from < 0 ? Word{0} : reinterpret_cast<const Word*>(x.data)[from * x.stride + d];
    });
}

template <typename Word>
__global__ void copy_kernel(Matrix x, RowPairs pairs, Matrix out) {
    for_elements(pairs.count, out.cols, [&](std::int64_t i, std::int64_t d) {
        const std::int64_t from = pairs.from[i];
        if (from < 0) return;
        reinterpret_cast<Word*>(out.data)[pairs.to[i] * out.stride + d] =
            reinterpret_cast<const Word*>(x.data)[from * x.stride + d];
    });
}

}  // namespace

void embed(Stream stream, const std::int32_t* tokens, const EmbeddingTable& table,
           const Matrix& out) {
    if (out.rows == 0) return;
    launch("embed", embed_kernel, element_grid(out.rows, out.cols), kElementThreads, stream, tokens,
           table, out);
}

void rope_angles(Stream stream, const std::int32_t* position, std::int64_t tokens,
                 const RopeRule& rule, const Matrix& cos_sin) {
    if (tokens == 0) return;
    launch("rope_angles", rope_angles_kernel, element_grid(tokens, kRopePairs), kElementThreads,
           stream, position, tokens, rule, cos_sin);
}

void rope(Stream stream, const Matrix& from, std::int64_t from_step, std::int32_t heads,
          const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) {
    if (from.rows == 0 || heads == 0) return;
    launch("rope", rope_kernel, element_grid(from.rows, heads * kRopePairs), kElementThreads,
           stream, from, from_step, heads, cos_sin, to, to_step);
}

void convert(Stream stream, const Matrix& from, std::int64_t from_step, std::int32_t heads,
             std::int64_t width, const Matrix& to, std::int64_t to_step) {
    if (from.rows == 0 || heads * width == 0) return;
    launch("convert", convert_kernel, element_grid(from.rows, heads * width), kElementThreads,
           stream, from, from_step, heads, width, to, to_step);
}

void split_queries(Stream stream, const Matrix& q, std::int32_t heads, std::int64_t width,
                   const Matrix& cos_sin, const Matrix& q_act, const Matrix& rope_to,
                   std::int64_t rope_step) {
    if (q.rows == 0) return;
    if (q_act.dtype == DType::bf16 && rope_to.dtype == DType::bf16 && width % 4 == 0 &&
        rope_step % 4 == 0 && in_fours(q) && in_fours(cos_sin) && in_fours(q_act) &&
        in_fours(rope_to))
        return launch("split_queries", split_fours_kernel,
                      element_grid(q.rows, heads * (width + 2 * kRopePairs) / 4), kElementThreads,
                      stream, q, heads, static_cast<std::int32_t>(width), cos_sin, q_act, rope_to,
                      rope_step);
    launch("split_queries", split_queries_kernel,
           element_grid(q.rows, heads * (width + kRopePairs)), kElementThreads, stream, q, heads,
           static_cast<std::int32_t>(width), cos_sin, q_act, rope_to, rope_step);
}

void swiglu(Stream stream, const Matrix& gate_up, const Matrix& out) {
    if (out.rows == 0) return;
    launch("swiglu", swiglu_kernel, element_grid(out.rows, out.cols), kElementThreads, stream,
           gate_up, out);
}

void add_terms(Stream stream, const Terms& terms, const Matrix& residual) {
    if (residual.rows == 0) return;
    launch("add_terms", add_terms_kernel, element_grid(residual.rows, residual.cols),
           kElementThreads, stream, terms, residual);
}

void gather_rows(Stream stream, const Matrix& x, const std::int32_t* index, const Matrix& out) {
    if (out.rows == 0) return;
    const dim3 grid = element_grid(out.rows, out.cols);
    if (bytes_of(out.dtype) == 4)
        launch("gather_rows", gather_kernel<std::uint32_t>, grid, kElementThreads, stream, x, index,
               out);
    else
        launch("gather_rows", gather_kernel<std::uint16_t>, grid, kElementThreads, stream, x, index,
               out);
}

void copy_rows(Stream stream, const Matrix& x, const RowPairs& pairs, const Matrix& out) {
    if (pairs.count == 0) return;
    const dim3 grid = element_grid(pairs.count, out.cols);
    if (bytes_of(out.dtype) == 4)
        launch("copy_rows", copy_kernel<std::uint32_t>, grid, kElementThreads, stream, x, pairs,
               out);
    else
        launch("copy_rows", copy_kernel<std::uint16_t>, grid, kElementThreads, stream, x, pairs,
               out);
}

}  // namespace espalier::ops::cuda
