// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/order.hpp"

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/hopper/arranged_plan.hpp"

namespace espalier::linalg::cuda {
namespace {

// Memory of rows of elements.
MemoryRange rows_of(const void* data, std::int64_t rows, std::int64_t stride, std::int64_t cols,
                    std::int64_t bytes) {
    if (data == nullptr || rows == 0 || cols == 0) return {};
    const auto* begin = static_cast<const std::byte*>(data);
    return {begin, begin + ((rows - 1) * stride + cols) * bytes};
}

std::int64_t input_bytes(const Product& p) { return in_fragments(p.code) ? 2 : 4; }
bool is_expert(const Product& p) { return p.indptr != nullptr; }

MemoryRange routing_of(const Product& p) { return range_of(p.indptr, std::int64_t{p.groups} + 1); }

Ranges rows_and_sources(const Product& p) {
    const std::int64_t matrices = is_expert(p) ? 1 : p.groups;
    return {rows_of(p.x, p.x_rows, p.x_stride, (matrices - 1) * p.x_step + p.k, input_bytes(p)),
            range_of(p.source, p.rows)};
}

// By which queries are rotated.
MemoryRange angles_of(const Problem& p) {
    return rows_of(p.query.cos_sin, p.rows, p.query.cos_sin_stride, 64, 4);
}

Ranges inputs_of(const Problem& p, const MemoryRange& routing) {
    Ranges inputs = rows_and_sources(p);
    inputs.add(routing);
    inputs.add(rows_of(p.lead.x, p.lead.rows, p.lead.x_stride, p.lead.k, input_bytes(p)));
    inputs.add(angles_of(p));
    return inputs;
}

}  // namespace

Ranges outputs_of(const Problem& p) {
    const std::int64_t matrices = is_expert(p) ? 1 : p.groups;
    const std::int64_t columns = p.gated ? p.n / 2 : p.n;
    Ranges outputs;
    if (p.query.cos_sin == nullptr) {
        outputs.add(rows_of(p.y, p.rows, p.y_stride, (matrices - 1) * p.y_step + columns,
                            static_cast<std::int64_t>(bytes_of(p.y_type))));
    } else {
        const std::int64_t heads = p.n / (p.query.width + 64);
        outputs.add(rows_of(p.query.act, p.rows, p.query.act_stride, p.n, 2));
        outputs.add(rows_of(p.query.rope, p.query.apart, p.query.rope_stride,
                            (heads - 1) * p.query.rope_step + 64, 2));
    }
    outputs.add(rows_of(p.second.y, p.rows, p.second.y_stride, p.second.n, 4));
    outputs.add(rows_of(p.lead.y, p.lead.rows, p.lead.y_stride, p.gated ? p.lead.n / 2 : p.lead.n,
                        p.gated ? 2 : 4));
    return outputs;
}

// Which weights an expert product reads its routing says, so it begins with a wait, unless all that
// it reads is early. A dense one asks for weights and lets the next kernel be set up at once.
LaunchNeeds many_needs(const Problem& p, const Wishes& wishes) {
    return {.name = is_expert(p) ? "an expert product" : "a product",
            .reads = inputs_of(p, routing_of(p)),
            .writes = outputs_of(p),
            .early = wishes.early,
            .holds_back = wishes.holds_back,
            .release = is_expert(p) ? Release::behind_wait : Release::at_once,
            .release_ahead = is_expert(p) ? Release::behind_wait : Release::at_once};
}

// Rows that lie as pairs were made behind the routing, which is read ahead then (about 2.5 µs less
// for the down product of one token). One that leads lets the next start behind its wait.
LaunchNeeds few_needs(const Problem& p, const Wishes& wishes) {
    LaunchNeeds needs = many_needs(p, wishes);
    if (is_expert(p) && p.source == nullptr) {
        needs.reads = inputs_of(p, {});
        needs.ahead = {routing_of(p)};
    }
    return needs;
}

LaunchNeeds plain_needs(const Problem& p, const Wishes& wishes) {
    return many_needs(p, {.holds_back = wishes.holds_back});
}

std::int64_t arranged_room(const Problem& p) {
    return static_cast<std::int64_t>(arranged_bytes(p.rows, p.k));
}

LaunchNeeds arranging(const Product& p, const MemoryRange& arranged) {
    Ranges reads = rows_and_sources(p);
    reads.add(routing_of(p));
    return {.name = "arranging x",
            .reads = reads,
            .writes = {arranged},
            .release = Release::behind_wait};
}

// Tiles are counted in the header of what is arranged.
LaunchNeeds multiplying(const Problem& p, const MemoryRange& arranged, const Ranges& outputs) {
    const std::byte* rows = arranged.begin + kArrangedHeader;
    LaunchNeeds needs{.name = "a product of arranged x",
                      .reads = {MemoryRange{rows, arranged.end}, routing_of(p), angles_of(p)},
                      .writes = outputs,
                      .release = Release::behind_wait};
    needs.writes.add(MemoryRange{arranged.begin, rows});
    return needs;
}

}  // namespace espalier::linalg::cuda
