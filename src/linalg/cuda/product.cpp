// SPDX-License-Identifier: Apache-2.0
// The three products: what a call says is checked and becomes a Problem, its size picks the kernel.
#include "linalg/cuda/product.hpp"

#include <algorithm>
#include <limits>

#include "linalg/cuda/few_tokens.hpp"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/hopper/arranged.hpp"
#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {
namespace {

std::int32_t narrow(std::int64_t value, const char* what) {
    CHECK(value >= 0 && value <= std::numeric_limits<std::int32_t>::max(), "{}: {}", what, value);
    return static_cast<std::int32_t>(value);
}

Problem problem_of(const Matrix& x, std::int64_t x_step, const WeightView& w, const Matrix& y,
                   std::int64_t y_step, Store store,
                   WeightLayout layout = WeightLayout::fragments) {
    CHECK(w.layout == layout, "weights laid out as {}, wanted are {}", name_of(w.layout),
          name_of(layout));
    const std::int64_t outputs = layout == WeightLayout::gated_fragments ? w.n / 2 : w.n;
    CHECK(x.dtype == w.format.input(), "x is {}, {} weights are multiplied by {}", name_of(x.dtype),
          name_of(w.format.code), name_of(w.format.input()));
    CHECK(y.dtype != DType::e4m3 && (store == Store::assign || y.dtype == DType::f32), "y is {}{}",
          name_of(y.dtype), store == Store::assign ? "" : ", to be added to");
    CHECK(x.cols >= (w.count - 1) * x_step + w.k && y.cols >= (w.count - 1) * y_step + outputs,
          "x [{}, {}] in steps of {}, W {} × [{}, {}], y [{}, {}] in steps of {}", x.rows, x.cols,
          x_step, w.count, w.n, w.k, y.rows, y.cols, y_step);
    const std::int64_t scales = tiles_of(w.n) * chunks_of(w.k) * std::int64_t{sizeof(float)};
    Problem p;
    p.weights = w.data;
    p.scales = reinterpret_cast<const float*>(w.scales);
    p.matrix_bytes = w.matrix_bytes;
    p.matrix_scales = w.scale_bytes / std::int64_t{sizeof(float)};
    p.x = x.data;
    p.y = y.data;
    p.x_stride = x.stride;
    p.x_step = x_step;
    p.y_stride = y.stride;
    p.y_step = y_step;
    p.n = narrow(w.n, "outputs");
    p.k = narrow(w.k, "inputs");
    p.groups = narrow(w.count, "matrices");
    p.rows = narrow(y.rows, "rows of y");
    p.x_rows = narrow(x.rows, "rows of x");
    // Kernels count elements of x in 32 bits.
    narrow(x.rows * x.stride, "elements of x");
    if (in_blocks(w.format.code)) p.scale_outputs = narrow(w.scale_bytes / scales, "scales");
    if (in_fragments(w.format.code)) p.half_bytes = half_bytes(w.format);
    p.two_groups = groups_of_half(w.format) == 2;
    p.wide_scales = w.format.scale == ScaleType::f32;
    p.code = w.format.code;
    p.y_type = y.dtype;
    p.accumulate = store == Store::accumulate;
    p.gated = layout == WeightLayout::gated_fragments;
    const std::int64_t unit = 16 / static_cast<std::int64_t>(bytes_of(x.dtype));
    p.vector_x = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.stride % unit == 0 &&
                 x_step % unit == 0 && w.k % unit == 0;
    return p;
}

Problem experts_of(const Matrix& x, const std::int32_t* source_token, const std::int32_t* indptr,
                   const WeightView& w, const Matrix& y, WeightLayout layout) {
    CHECK(x.cols == w.k && y.cols == (layout == WeightLayout::fragments ? w.n : w.n / 2) &&
              indptr != nullptr && (source_token != nullptr || x.rows == y.rows),
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    Problem p = problem_of(x, 0, w, y, 0, Store::assign, layout);
    p.source = source_token;
    p.indptr = indptr;
    // Rows that lie as pairs were written behind the routing, by a chain of kernels that begins
    // with an expert product, and those hold the next kernel back.
    p.routing_settled = source_token == nullptr;
    return p;
}

// Which kernel is faster follows from two estimates, both from measurements on an H200 (the figures
// below are microseconds). Experts are taken to have the average number of tokens each.

// Few tokens: reading the weights, times how much slower tokens make it; or, where groups are many
// and small, the blocks' rounds of work.
double few_microseconds(const Problem& p) {
    const std::int64_t groups = p.indptr == nullptr ? p.groups : std::min(p.groups, p.rows);
    const std::int64_t tokens = p.indptr == nullptr ? p.rows : divide_up(p.rows, p.groups);
    const std::int64_t token_tiles = divide_up(tokens, 64);
    const double read = static_cast<double>(groups * p.matrix_bytes * token_tiles) / 4.45e6;
    double slower = tokens <= 8 ? 1.05 : tokens <= 16 ? 1.25 : tokens <= 32 ? 1.8 : 4.5;
    // Codes: v3 q_a with kv_a, 64 tokens, 24 µs.
    if (p.indptr == nullptr && p.code != WeightCode::bf16 && tokens > 32) slower = 7.0;
    // Experts' numbers scatter: some have a second tile of tokens (v2 gate_up, 64 tokens).
    if (p.indptr != nullptr && tokens > 4 && tokens <= 16) slower = 1.2;
    const std::int64_t items =
        groups * token_tiles * divide_up(tiles_of(p.n), row_warps_of(segments_of(p.n, p.k)));
    const std::int64_t rounds = divide_up(items, 2 * multiprocessors());
    const double round =
        (p.groups > 1 ? 1.3 : 1.0) + 0.12 * static_cast<double>(std::min<std::int64_t>(tokens, 64));
    return std::max(read * slower, static_cast<double>(rounds) * round);
}

// Many: rounds of tiles of 128 outputs by so many tokens.
struct ManyTile {
    int tokens = 0;
    int blocks = 1;      // that share it
    double once = 0.0;   // of a tile
    double chunk = 0.0;  // of 128 inputs
};
constexpr ManyTile kManyTiles[] = {{32, 1, 0.8, 0.58}, {64, 1, 1.5, 0.88}, {128, 1, 2.5, 1.35}};
constexpr ManyTile kSharedTile = {256, 2, 2.5, 1.15};
constexpr int kMostSplit = 8;                // blocks of a cluster on every device that has them
constexpr std::int64_t kMostSplitRows = 64;  // with more, tiles are enough
constexpr double kMerge = 3.0;               // of a cluster's sums

double many_microseconds(const Problem& p, const ManyTile& tile) {
    const std::int64_t tiles =
        most_token_tiles(p, tile.tokens) * (divide_up(p.n, 128) + divide_up(p.second.n, 128));
    const std::int64_t rounds = divide_up(tiles, multiprocessors() / tile.blocks);
    const double work = static_cast<double>(rounds) *
                        (tile.once + tile.chunk * static_cast<double>(chunks_of(p.k)));
    const std::int64_t groups = p.indptr == nullptr ? p.groups : std::min(p.groups, p.rows);
    const double read = static_cast<double>(groups * p.matrix_bytes) / 4.45e6;
    return 1.0 + std::max(work, 1.07 * read);
}

// Whether tiles of 256 tokens, which two blocks share, are faster than those of 128. Experts: where
// most have two of these (v2 gate_up, 2,048 tokens: 492 µs, not 529; 8,192: 1,709, not 1,667).
bool shares_tiles(const Problem& p) {
    if (p.indptr != nullptr) return p.rows > 144 * p.groups && p.rows <= 256 * p.groups;
    return many_microseconds(p, kSharedTile) < many_microseconds(p, kManyTiles[2]);
}

// A cluster's blocks have a part of a tile's segments each.
double split_microseconds(const Problem& p, const ManyTile& tile, int split) {
    const Segments segments = segments_of(p.n, p.k);
    const std::int64_t own = divide_up(segments.count, split) * segments.chunks;
    const double work = tile.once + tile.chunk * static_cast<double>(own);
    const double read = static_cast<double>(p.groups * p.matrix_bytes) / 4.45e6;
    return 1.0 + kMerge + std::max(work, 1.07 * read);
}

// The best plan of that kind, if there is one that takes less than `best`.
void consider_split(const Problem& p, const ManyTile& tile, double& best, ManyPlan& plan) {
    const std::int64_t tiles =
        most_token_tiles(p, tile.tokens) * (divide_up(p.n, 128) + divide_up(p.second.n, 128));
    const int segments = segments_of(p.n, p.k).count;
    for (int split = 2; split <= std::min(segments, kMostSplit); ++split) {
        const std::int64_t own = divide_up(segments, split);
        if (own > kMostSplitSegments || divide_up(segments, own) != split ||
            tiles > many_clusters(split))
            continue;
        if (const double time = split_microseconds(p, tile, split); time < best) {
            best = time;
            plan = {tile.tokens, split};
        }
    }
}

// The kernel for many, if it is faster than the one for few.
ManyPlan many_plan(const Problem& p) {
    if (!p.vector_x) return {};
    // Heads' products of few tokens: what a tile of tensor cores takes to begin and end is not in
    // the estimates (v3 value of 8 tokens: 12 µs of a step's chain, not 5).
    if (p.indptr == nullptr && p.groups > 1 && p.rows <= 8) return {};
    double best = few_microseconds(p);
    ManyPlan plan;
    for (const ManyTile& tile : kManyTiles) {
        if (const double time = many_microseconds(p, tile); time < best) {
            best = time;
            plan = {tile.tokens, 1};
        }
        if (tile.tokens < 128 && p.indptr == nullptr && p.rows <= kMostSplitRows)
            consider_split(p, tile, best, plan);
    }
    if (plan.tokens == 128 && shares_tiles(p)) plan.tokens = kSharedTile.tokens;
    return plan;
}

void run(Stream stream, Problem p, Overlap overlap, const Scratch& scratch = {}) {
    p.overlap = overlap;
    if (p.rows == 0 || p.x_rows == 0) return;
    const auto queue = static_cast<cudaStream_t>(stream);
    if (!in_fragments(p.code)) return plain(queue, p);
    if (arranges(p, scratch)) return arranged_tokens(queue, p, scratch);
    if (const ManyPlan plan = many_plan(p); plan.tokens > 0) return many_tokens(queue, p, plan);
    few_tokens(queue, p);
}

// A dense product goes in front of an expert product while a tile of tokens holds all of its rows:
// with more its weights would be read once for every tile.
constexpr std::int64_t kMostLeadingRows = 8;

bool run_leading(Stream stream, const Problem& lead, Problem p) {
    const Segments one = segments_of(lead.n, lead.k), two = segments_of(p.n, p.k);
    if (lead.rows == 0 || lead.rows > kMostLeadingRows || !in_fragments(p.code) ||
        lead.code != p.code || lead.half_bytes != p.half_bytes ||
        lead.scale_outputs != p.scale_outputs || lead.two_groups != p.two_groups ||
        lead.wide_scales != p.wide_scales || one.count != two.count || !lead.vector_x ||
        !p.vector_x || lead.k % kChunkInputs != 0 || p.k % kChunkInputs != 0 ||
        lead.gated != p.gated || lead.y_type != p.y_type ||
        p.y_type != (p.gated ? DType::bf16 : DType::f32))
        return false;
    p.lead = {lead.weights,  lead.scales, lead.x, lead.y,   lead.x_stride,
              lead.y_stride, lead.n,      lead.k, lead.rows};
    few_tokens(static_cast<cudaStream_t>(stream), p);
    return true;
}

QueryStore store_of(const Queries& queries) {
    CHECK(queries.act.dtype == DType::bf16 && queries.rope.dtype == DType::bf16 &&
              queries.cos_sin.dtype == DType::f32 && queries.width % 2 == 0,
          "queries go to {} and {}", name_of(queries.act.dtype), name_of(queries.rope.dtype));
    return {reinterpret_cast<const float*>(queries.cos_sin.data),
            reinterpret_cast<std::uint16_t*>(queries.act.data),
            reinterpret_cast<std::uint16_t*>(queries.rope.data),
            queries.cos_sin.stride,
            queries.act.stride,
            queries.rope.stride,
            queries.rope_step,
            narrow(queries.width, "columns of a query"),
            narrow(queries.rope.rows, "rows of queries")};
}

// Makes the other product p's second. False: their weights differ in more than outputs.
bool join(Problem& p, const Problem& other) {
    const Segments one = segments_of(p.n, p.k), two = segments_of(other.n, other.k);
    if (other.code != p.code || other.k != p.k || other.scale_outputs != p.scale_outputs ||
        other.half_bytes != p.half_bytes || other.two_groups != p.two_groups ||
        other.wide_scales != p.wide_scales || other.n % kTileOutputs != 0 ||
        other.y_type != DType::f32 || one.count != two.count || one.chunks != two.chunks)
        return false;
    p.second = {other.weights, other.scales, reinterpret_cast<float*>(other.y), other.y_stride,
                other.n};
    return true;
}

}  // namespace

std::size_t scratch_bytes(std::int64_t rows, std::int64_t k) { return arranged_bytes(rows, k); }

void product(Stream stream, const Matrix& x, const WeightView& w, const Matrix& y, Store store,
             Overlap overlap, Scratch scratch) {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    run(stream, problem_of(x, 0, w, y, 0, store), overlap, scratch);
}

bool joint_product(Stream stream, const Matrix& x, const WeightView& w, const Matrix& y,
                   const Second& second, const Queries* queries, Scratch scratch) {
    Problem p = problem_of(x, 0, w, y, 0, Store::assign);
    const auto queue = static_cast<cudaStream_t>(stream);
    if (p.rows == 0 || !in_fragments(p.code) || p.n % kTileOutputs != 0) return false;
    if (queries != nullptr) p.query = store_of(*queries);
    if (second.y.data != nullptr &&
        !join(p, problem_of(x, 0, second.w, second.y, 0, Store::assign)))
        return false;
    if (arranges(p, scratch)) {
        arranged_tokens(queue, p, scratch);
        return true;
    }
    const ManyPlan plan = many_plan(p);
    if (plan.tokens >= 128 || (queries != nullptr && (plan.tokens > 0 || p.query.apart < p.rows)))
        return false;
    p.overlap.holds_next = queries != nullptr;
    if (plan.tokens > 0)
        many_tokens(queue, p, plan);
    else
        few_tokens(queue, p);
    return true;
}

void stacked_product(Stream stream, const Matrix& x, std::int64_t x_step, const WeightView& w,
                     const Matrix& y, std::int64_t y_step, Overlap overlap) {
    CHECK(x.rows == y.rows, "x of {} rows, y of {}", x.rows, y.rows);
    run(stream, problem_of(x, x_step, w, y, y_step, Store::assign), overlap);
}

void expert_product(Stream stream, const Matrix& x, const std::int32_t* source_token,
                    const std::int32_t* indptr, const WeightView& w, const Matrix& y,
                    Overlap overlap, Scratch scratch) {
    run(stream, experts_of(x, source_token, indptr, w, y, WeightLayout::fragments), overlap,
        scratch);
}

bool joint_expert_product(Stream stream, const Dense& lead, const Matrix& x,
                          const std::int32_t* source_token, const std::int32_t* indptr,
                          const WeightView& w, const Matrix& y) {
    if (w.layout != lead.w.layout) return false;
    return run_leading(stream, problem_of(lead.x, 0, lead.w, lead.y, 0, Store::assign, w.layout),
                       experts_of(x, source_token, indptr, w, y, w.layout));
}

void gated_product(Stream stream, const Matrix& x, const WeightView& w, const Matrix& y,
                   Overlap overlap, Scratch scratch) {
    CHECK(w.count == 1 && x.cols == w.k && 2 * y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], gate and up {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k,
          y.rows, y.cols);
    run(stream, problem_of(x, 0, w, y, 0, Store::assign, WeightLayout::gated_fragments), overlap,
        scratch);
}

void gated_expert_product(Stream stream, const Matrix& x, const std::int32_t* source_token,
                          const std::int32_t* indptr, const WeightView& w, const Matrix& y,
                          Overlap overlap, Scratch scratch) {
    run(stream, experts_of(x, source_token, indptr, w, y, WeightLayout::gated_fragments), overlap,
        scratch);
}

bool feed_forward(Stream stream, const Matrix& x, const WeightView& gate_up, const WeightView& down,
                  const Matrix& gated, const Matrix& y, const FeedForwardScratch& scratch) {
    if (gate_up.layout != WeightLayout::gated_fragments || x.rows == 0) return false;
    const Problem one =
        problem_of(x, 0, gate_up, gated, 0, Store::assign, WeightLayout::gated_fragments);
    const Problem two = problem_of(gated, 0, down, y, 0, Store::assign);
    CHECK(gate_up.count == 1 && down.count == 1 && x.rows == gated.rows && x.rows == y.rows,
          "x of {} rows, gated {}, y of {}", x.rows, gated.rows, y.rows);
    if (!arranges_pair(one, scratch.x, two, scratch.gated)) return false;
    arranged_pair(static_cast<cudaStream_t>(stream), one, scratch.x, two, scratch.gated);
    return true;
}

bool expert_feed_forward(Stream stream, const Matrix& x, const std::int32_t* source_token,
                         const std::int32_t* indptr, const WeightView& gate_up,
                         const WeightView& down, const Matrix& gated, const Matrix& y,
                         const FeedForwardScratch& scratch) {
    if (gate_up.layout != WeightLayout::gated_fragments || x.rows == 0) return false;
    const Problem one =
        experts_of(x, source_token, indptr, gate_up, gated, WeightLayout::gated_fragments);
    const Problem two = experts_of(gated, nullptr, indptr, down, y, WeightLayout::fragments);
    CHECK(gate_up.count == down.count, "{} experts, {} behind them", gate_up.count, down.count);
    if (!arranges_pair(one, scratch.x, two, scratch.gated)) return false;
    arranged_pair(static_cast<cudaStream_t>(stream), one, scratch.x, two, scratch.gated);
    return true;
}

}  // namespace espalier::linalg::cuda
