// SPDX-License-Identifier: Apache-2.0
// In place of the kernels of products: sums over weights that lie as f32 [group][n][k], wherever
// the layout says they lie.
#include <cmath>

#include "base/cuda/device_facts.hpp"
#include "linalg/cuda/few_plan.hpp"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/hopper/arranged.hpp"
#include "linalg/cuda/many_plan.hpp"
#include "linalg/cuda/product.hpp"
#include "ops/order/fake_gpu.hpp"

namespace espalier {

const DeviceFacts& facts_of(Stream) { return order_test::recording().facts; }

namespace linalg::cuda {
namespace {

using order_test::Kernel;
using order_test::queue;

float number(const std::byte* data, std::int64_t at, bool wide) {
    return wide ? reinterpret_cast<const float*>(data)[at]
                : to_float(reinterpret_cast<const Bf16*>(data)[at]);
}

void put(std::byte* data, DType type, std::int64_t at, float value, bool adds) {
    if (type == DType::f32) {
        float& to = reinterpret_cast<float*>(data)[at];
        to = adds ? to + value : value;
    } else {
        reinterpret_cast<Bf16*>(data)[at] = to_bf16(value);
    }
}

// Factor of a row.
struct Side {
    const std::byte* weights;
    std::int64_t n, k;
};

float sum_of(const Side& side, std::int64_t group, std::int64_t output, const std::byte* x,
             std::int64_t from, bool wide) {
    const float* w =
        reinterpret_cast<const float*>(side.weights) + (group * side.n + output) * side.k;
    float sum = 0.0f;
    for (std::int64_t i = 0; i < side.k; ++i) sum += number(x, from + i, wide) * w[i];
    return sum;
}

// One row's results through write(column, value).
template <typename Write>
void multiply_row(const Side& side, bool gated, std::int64_t group, const std::byte* x,
                  std::int64_t from, bool wide, const Write& write) {
    const std::int64_t outputs = gated ? side.n / 2 : side.n;
    for (std::int64_t o = 0; o < outputs; ++o) {
        const float sum = sum_of(side, group, o, x, from, wide);
        const float up = gated ? sum_of(side, group, outputs + o, x, from, wide) : 0.0f;
        write(o, gated ? sum / (1.0f + std::fabs(sum)) * up : sum);
    }
}

void put_query(const Problem& p, std::int64_t row, std::int64_t column, float value) {
    const QueryStore& q = p.query;
    const std::int64_t head = column / (q.width + 64), i = column % (q.width + 64);
    const auto bits =
        to_bf16(i < q.width ? value : value * q.cos_sin[row * q.cos_sin_stride + i - q.width]).bits;
    if (i < q.width || row >= q.apart)
        q.act[row * q.act_stride + column] = bits;
    else
        q.rope[row * q.rope_stride + head * q.rope_step + i - q.width] = bits;
}

using Routing = std::vector<std::int32_t>;

void read_routing(const Problem& p, Routing& routing) {
    routing.assign(p.indptr, p.indptr + p.groups + 1);
}

// Rows of y and of x, group by group.
template <typename Visit>
void for_rows(const Problem& p, const Routing& routing, const Visit& visit) {
    for (std::int64_t g = 0; g < p.groups; ++g) {
        const std::int64_t first = p.indptr == nullptr ? 0 : routing[static_cast<std::size_t>(g)];
        const std::int64_t end =
            p.indptr == nullptr ? p.rows : routing[static_cast<std::size_t>(g) + 1];
        for (std::int64_t row = first; row < end && row >= 0 && row < p.rows; ++row) {
            const std::int64_t from = p.source != nullptr ? p.source[row] : row;
            visit(g, row, from < 0 || from >= p.x_rows ? 0 : from);
        }
    }
}

void store_row(const Problem& p, std::int64_t g, std::int64_t row, const std::byte* x,
               std::int64_t from) {
    const bool wide = !in_fragments(p.code);
    multiply_row(
        {p.weights, p.n, p.k}, p.gated, g, x, from, wide, [&](std::int64_t column, float value) {
            if (p.query.cos_sin != nullptr)
                put_query(p, row, column, value);
            else
                put(p.y, p.y_type, row * p.y_stride + g * p.y_step + column, value, p.accumulate);
        });
    if (p.second.n > 0)
        multiply_row({p.second.weights, p.second.n, p.k}, false, g, x, from, wide,
                     [&](std::int64_t column, float value) {
                         p.second.y[row * p.second.y_stride + column] = value;
                     });
}

void multiply(const Problem& p, Routing routing) {
    if (p.indptr != nullptr && routing.empty()) read_routing(p, routing);
    for (std::int64_t row = 0; row < p.lead.rows; ++row)
        multiply_row({p.lead.weights, p.lead.n, p.lead.k}, p.gated, 0, p.lead.x,
                     row * p.lead.x_stride, false, [&](std::int64_t column, float value) {
                         put(p.lead.y, p.gated ? DType::bf16 : DType::f32,
                             row * p.lead.y_stride + column, value, false);
                     });
    for_rows(p, routing, [&](std::int64_t g, std::int64_t row, std::int64_t from) {
        store_row(p, g, row, p.x, from * p.x_stride + g * p.x_step);
    });
}

// Moment at which few_tokens.cuh, many_tokens.cuh and plain.cu let the next kernel start.
Kernel kernel_of(const Problem& p, const LaunchGrant& grant) {
    const bool experts = p.indptr != nullptr;
    const bool at_once = !grant.holds_next && (!experts || grant.early) && p.lead.rows == 0;
    CHECK(!(grant.early && grant.holds_next), "an early product that holds the next one back");
    return {.name = experts ? "an expert product" : "a product",
            .body = [p] { multiply(p, {}); },
            .early = grant.early,
            .release = at_once ? Release::at_once : Release::behind_wait,
            .grant = grant};
}

std::byte* data_of(const Scratch& scratch) { return scratch.data + kArrangedHeader; }

Kernel arrange_kernel(const Problem& p, const Scratch& scratch) {
    const auto body = [p, scratch] {
        Routing routing;
        if (p.indptr != nullptr) read_routing(p, routing);
        *reinterpret_cast<int*>(scratch.data) = 0;
        auto* to = reinterpret_cast<Bf16*>(data_of(scratch));
        for_rows(p, routing, [&](std::int64_t, std::int64_t row, std::int64_t from) {
            for (std::int64_t i = 0; i < p.k; ++i)
                to[row * p.k + i] = reinterpret_cast<const Bf16*>(p.x)[from * p.x_stride + i];
        });
    };
    return {.name = "arranging x", .body = body, .release = Release::behind_wait};
}

// next: where a gated product leaves its result arranged; without data: y.
Kernel multiply_kernel(const Problem& p, const Scratch& scratch, const Scratch& next) {
    const auto body = [p, scratch, next] {
        Routing routing;
        if (p.indptr != nullptr) read_routing(p, routing);
        Problem here = p;
        here.source = nullptr;
        *reinterpret_cast<int*>(scratch.data) += 1;
        if (next.data != nullptr) {
            *reinterpret_cast<int*>(next.data) = 0;
            here.y = data_of(next);
            here.y_type = DType::bf16;
            here.y_stride = p.n / 2;
        }
        for_rows(here, routing, [&](std::int64_t g, std::int64_t row, std::int64_t) {
            store_row(here, g, row, data_of(scratch), row * p.k);
        });
    };
    return {.name = "a product of arranged x", .body = body, .release = Release::behind_wait};
}

}  // namespace

void few_tokens(Stream, const Problem& p, const LaunchGrant& grant, const DeviceFacts&) {
    Kernel kernel = kernel_of(p, grant);
    if (grant.ahead) {
        auto routing = std::make_shared<Routing>();
        kernel.ahead = [p, routing] { read_routing(p, *routing); };
        kernel.body = [p, routing] { multiply(p, *routing); };
    }
    queue(std::move(kernel));
}
void many_tokens(Stream, const Problem& p, const LaunchGrant& grant, const ManyPlan&,
                 const DeviceFacts&) {
    queue(kernel_of(p, grant));
}
void plain(Stream, const Problem& p, const LaunchGrant& grant) { queue(kernel_of(p, grant)); }

void arranged_tokens(Stream, const Problem& p, const Scratch& scratch, const DeviceFacts&) {
    queue(arrange_kernel(p, scratch));
    queue(multiply_kernel(p, scratch, {}));
}
void arranged_pair(Stream, const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between, const DeviceFacts&) {
    queue(arrange_kernel(gated, scratch));
    queue(multiply_kernel(gated, scratch, between));
    queue(multiply_kernel(down, between, {}));
}

Expected<Weight> pack(Device&, WeightStack) {
    return fail(ErrorKind::unsupported, "no weights are packed here");
}
Expected<Weight> pack_gated(Device&, WeightStack) {
    return fail(ErrorKind::unsupported, "no weights are packed here");
}

}  // namespace linalg::cuda
}  // namespace espalier
