// SPDX-License-Identifier: Apache-2.0
// The three products: what a call says is checked and becomes a Problem, its size picks the kernel.
#include "linalg/cuda/product.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "base/cuda/device_facts.hpp"
#include "linalg/cuda/few_plan.hpp"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/hopper/arranged.hpp"
#include "linalg/cuda/many_plan.hpp"
#include "linalg/cuda/order.hpp"

namespace espalier::linalg::cuda {
namespace {

std::int32_t narrow(std::int64_t value, const char* what) {
    CHECK(value >= 0 && value <= std::numeric_limits<std::int32_t>::max(), "{}: {}", what, value);
    return static_cast<std::int32_t>(value);
}

Product product_of(const Matrix& x, std::int64_t x_step, const WeightView& w, const Matrix& y,
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
    Product p;
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

Product experts_of(const Matrix& x, const std::int32_t* source_token, const std::int32_t* indptr,
                   const WeightView& w, const Matrix& y, WeightLayout layout) {
    CHECK(x.cols == w.k && y.cols == (layout == WeightLayout::fragments ? w.n : w.n / 2) &&
              indptr != nullptr && (source_token != nullptr || x.rows == y.rows),
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    Product p = product_of(x, 0, w, y, 0, Store::assign, layout);
    p.source = source_token;
    p.indptr = indptr;
    return p;
}

void run_arranged(const Queue& queue, const Problem& p, const Scratch& scratch,
                  const DeviceFacts& facts) {
    const MemoryRange arranged = range_of(scratch.data, arranged_room(p));
    queue.order().launch(arranging(p, arranged));
    queue.order().launch(multiplying(p, arranged, outputs_of(p)));
    arranged_tokens(queue.stream(), p, scratch, facts);
}

void run_few(const Queue& queue, const Problem& p, const Wishes& wishes, const DeviceFacts& facts) {
    few_tokens(queue.stream(), p, queue.order().launch(few_needs(p, wishes)), facts);
}

void run_many(const Queue& queue, const Problem& p, const Wishes& wishes, const ManyPlan& plan,
              const DeviceFacts& facts) {
    many_tokens(queue.stream(), p, queue.order().launch(many_needs(p, wishes)), plan, facts);
}

void run(const Queue& queue, const Product& product, const Wishes& wishes,
         const Scratch& scratch = {}) {
    const Problem p(product);
    if (p.rows == 0 || p.x_rows == 0) return;
    if (!in_fragments(p.code))
        return plain(queue.stream(), p, queue.order().launch(plain_needs(p, wishes)));
    const DeviceFacts& facts = facts_of(queue.stream());
    if (arranges(p, scratch, facts)) return run_arranged(queue, p, scratch, facts);
    if (const ManyPlan plan = many_plan(p, facts); plan.tokens > 0)
        return run_many(queue, p, wishes, plan, facts);
    run_few(queue, p, wishes, facts);
}

// A dense product goes in front of an expert product while a tile of tokens holds all of its rows:
// with more its weights would be read once for every tile.
constexpr std::int64_t kMostLeadingRows = 8;

bool run_leading(const Queue& queue, const Product& lead, const Product& p) {
    const Segments one = segments_of(lead.n, lead.k), two = segments_of(p.n, p.k);
    if (lead.rows == 0 || lead.rows > kMostLeadingRows || !in_fragments(p.code) ||
        !same_format(lead, p) || one.count != two.count || !lead.vector_x || !p.vector_x ||
        lead.k % kChunkInputs != 0 || p.k % kChunkInputs != 0 || lead.gated != p.gated ||
        lead.y_type != p.y_type || p.y_type != (p.gated ? DType::bf16 : DType::f32))
        return false;
    const Problem both(p, LeadingProduct{lead.weights, lead.scales, lead.x, lead.y, lead.x_stride,
                                         lead.y_stride, lead.n, lead.k, lead.rows});
    const DeviceFacts& facts = facts_of(queue.stream());
    if (!fits(both, few_plan(both, facts), facts)) return false;
    run_few(queue, both, {}, facts);
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

bool can_join(const Product& p, const Product& other) {
    const Segments one = segments_of(p.n, p.k), two = segments_of(other.n, other.k);
    return same_format(other, p) && other.k == p.k && other.n % kTileOutputs == 0 &&
           other.y_type == DType::f32 && one.count == two.count && one.chunks == two.chunks;
}

// A pair's first product leaves its result where the second reads it, arranged.
void run_pair(const Queue& queue, const Problem& one, const Problem& two,
              const FeedForwardScratch& scratch, const DeviceFacts& facts) {
    const MemoryRange x = range_of(scratch.x.data, arranged_room(one));
    const MemoryRange between = range_of(scratch.gated.data, arranged_room(two));
    queue.order().launch(arranging(one, x));
    queue.order().launch(multiplying(one, x, {between}));
    queue.order().launch(multiplying(two, between, outputs_of(two)));
    arranged_pair(queue.stream(), one, scratch.x, two, scratch.gated, facts);
}

}  // namespace

std::size_t scratch_bytes(std::int64_t rows, std::int64_t k) { return arranged_bytes(rows, k); }

void product(const Queue& queue, const Matrix& x, const WeightView& w, const Matrix& y, Store store,
             const Wishes& wishes, Scratch scratch) {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    run(queue, product_of(x, 0, w, y, 0, store), wishes, scratch);
}

bool joint_product(const Queue& queue, const Matrix& x, const WeightView& w, const Matrix& y,
                   const Second& second, const Queries* queries, Scratch scratch,
                   const Ranges& holds_back) {
    const Product first = product_of(x, 0, w, y, 0, Store::assign);
    const DeviceFacts& facts = facts_of(queue.stream());
    if (first.rows == 0 || !in_fragments(first.code) || first.n % kTileOutputs != 0) return false;
    Beside beside;
    if (queries != nullptr) beside.query = store_of(*queries);
    if (second.y.data != nullptr) {
        const Product other = product_of(x, 0, second.w, second.y, 0, Store::assign);
        if (!can_join(first, other)) return false;
        beside.second = {other.weights, other.scales, reinterpret_cast<float*>(other.y),
                         other.y_stride, other.n};
    }
    const Problem p(first, beside);
    if (arranges(p, scratch, facts)) {
        run_arranged(queue, p, scratch, facts);
        return true;
    }
    const ManyPlan plan = many_plan(p, facts);
    if (plan.tokens >= 128 || (queries != nullptr && (plan.tokens > 0 || p.query.apart < p.rows)))
        return false;
    const Wishes wishes{.holds_back = holds_back};
    if (plan.tokens > 0)
        run_many(queue, p, wishes, plan, facts);
    else
        run_few(queue, p, wishes, facts);
    return true;
}

void stacked_product(const Queue& queue, const Matrix& x, std::int64_t x_step, const WeightView& w,
                     const Matrix& y, std::int64_t y_step, const Wishes& wishes) {
    CHECK(x.rows == y.rows, "x of {} rows, y of {}", x.rows, y.rows);
    run(queue, product_of(x, x_step, w, y, y_step, Store::assign), wishes);
}

void expert_product(const Queue& queue, const Matrix& x, const std::int32_t* source_token,
                    const std::int32_t* indptr, const WeightView& w, const Matrix& y,
                    const Wishes& wishes, Scratch scratch) {
    run(queue, experts_of(x, source_token, indptr, w, y, WeightLayout::fragments), wishes, scratch);
}

bool joint_expert_product(const Queue& queue, const Dense& lead, const Matrix& x,
                          const std::int32_t* source_token, const std::int32_t* indptr,
                          const WeightView& w, const Matrix& y) {
    if (w.layout != lead.w.layout) return false;
    return run_leading(queue, product_of(lead.x, 0, lead.w, lead.y, 0, Store::assign, w.layout),
                       experts_of(x, source_token, indptr, w, y, w.layout));
}

void gated_product(const Queue& queue, const Matrix& x, const WeightView& w, const Matrix& y,
                   const Wishes& wishes, Scratch scratch) {
    CHECK(w.count == 1 && x.cols == w.k && 2 * y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], gate and up {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k,
          y.rows, y.cols);
    run(queue, product_of(x, 0, w, y, 0, Store::assign, WeightLayout::gated_fragments), wishes,
        scratch);
}

void gated_expert_product(const Queue& queue, const Matrix& x, const std::int32_t* source_token,
                          const std::int32_t* indptr, const WeightView& w, const Matrix& y,
                          const Wishes& wishes, Scratch scratch) {
    run(queue, experts_of(x, source_token, indptr, w, y, WeightLayout::gated_fragments), wishes,
        scratch);
}

bool feed_forward(const Queue& queue, const Matrix& x, const WeightView& gate_up,
                  const WeightView& down, const Matrix& gated, const Matrix& y,
                  const FeedForwardScratch& scratch) {
    if (gate_up.layout != WeightLayout::gated_fragments || x.rows == 0) return false;
    const Problem one(
        product_of(x, 0, gate_up, gated, 0, Store::assign, WeightLayout::gated_fragments));
    const Problem two(product_of(gated, 0, down, y, 0, Store::assign));
    CHECK(gate_up.count == 1 && down.count == 1 && x.rows == gated.rows && x.rows == y.rows,
          "x of {} rows, gated {}, y of {}", x.rows, gated.rows, y.rows);
    const DeviceFacts& facts = facts_of(queue.stream());
    if (!arranges_pair(one, scratch.x, two, scratch.gated, facts)) return false;
    run_pair(queue, one, two, scratch, facts);
    return true;
}

bool expert_feed_forward(const Queue& queue, const Matrix& x, const std::int32_t* source_token,
                         const std::int32_t* indptr, const WeightView& gate_up,
                         const WeightView& down, const Matrix& gated, const Matrix& y,
                         const FeedForwardScratch& scratch) {
    if (gate_up.layout != WeightLayout::gated_fragments || x.rows == 0) return false;
    const Problem one(
        experts_of(x, source_token, indptr, gate_up, gated, WeightLayout::gated_fragments));
    const Problem two(experts_of(gated, nullptr, indptr, down, y, WeightLayout::fragments));
    CHECK(gate_up.count == down.count, "{} experts, {} behind them", gate_up.count, down.count);
    const DeviceFacts& facts = facts_of(queue.stream());
    if (!arranges_pair(one, scratch.x, two, scratch.gated, facts)) return false;
    run_pair(queue, one, two, scratch, facts);
    return true;
}

}  // namespace espalier::linalg::cuda
