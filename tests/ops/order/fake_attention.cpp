// SPDX-License-Identifier: Apache-2.0
#include "ops/order/fake_attention.hpp"

#include <cmath>

#include "mla/cuda/order.hpp"
#include "ops/order/fake_gpu.hpp"

namespace espalier {
namespace {

using mla::AbsorbedCall;
using mla::AppendCall;
using mla::kKey;
using mla::kLatent;
using mla::KvPages;
using mla::RaggedRows;
using order_test::queue;

Bf16* slot_at(const KvPages& kv, std::int64_t slot) {
    return reinterpret_cast<Bf16*>(kv.data + slot / kv.page_tokens * kv.page_stride) +
           slot % kv.page_tokens * kKey;
}
std::int64_t slot_of(const RaggedRows& rows, std::int64_t row, std::int64_t key) {
    const std::int64_t page =
        rows.block_table[mla::table_of(rows, row) * rows.block_stride + key / 64];
    return (page < 0 ? 0 : page) * 64 + key % 64;
}

// All that a call knows of a row, from its arrays and its plan.
struct Row {
    std::int64_t first = 0, tokens = 0, keys = 0, own = 0;
    float weight = 0.0f;
    std::vector<float> history;  // sums of columns of the slots before its own
};

std::int64_t word_sum(const RaggedRows& rows, std::int64_t b) {
    std::int64_t sum = 0;
    for (std::int64_t t = rows.q_indptr[b]; t < rows.q_indptr[b + 1] && rows.words != nullptr; ++t)
        sum += static_cast<std::int64_t>(rows.words[t] % 7);
    return sum;
}

Row read_row(const RaggedRows& rows, const KvPages& kv, const std::int32_t* plan, std::int64_t b) {
    Row row;
    row.first = rows.q_indptr[b];
    row.tokens = rows.q_indptr[b + 1] - row.first;
    row.keys = rows.kv_len[b];
    row.own = std::min(row.tokens, row.keys);
    row.weight = 0.01f * static_cast<float>(1 + static_cast<int>(rows.mask[b]) + word_sum(rows, b) +
                                            (rows.tail_len != nullptr ? rows.tail_len[b] : 0) +
                                            (plan != nullptr ? plan[b] % 1000 : 0));
    row.history.assign(kKey, 0.0f);
    if (row.keys < 0 || row.keys > 1 << 12) row.keys = row.own = 0;  // read too early
    for (std::int64_t key = 0; kv.data != nullptr && key < row.keys - row.own; ++key)
        for (std::int64_t i = 0; i < kKey; ++i)
            row.history[static_cast<std::size_t>(i)] +=
                to_float(slot_at(kv, slot_of(rows, b, key))[i]);
    return row;
}

// An attention of constant weights, but for the query.
void attend(const RaggedRows& rows, const KvPages& kv, const std::vector<Row>& read,
            std::int32_t heads, const Bf16* q, std::int64_t query, Bf16* out, std::int64_t value) {
    for (std::int64_t b = 0; b < rows.rows; ++b) {
        const Row& row = read[static_cast<std::size_t>(b)];
        std::vector<float> sum = row.history;
        for (std::int64_t key = row.keys - row.own; key < row.keys; ++key)
            for (std::int64_t i = 0; i < kKey; ++i)
                sum[static_cast<std::size_t>(i)] += to_float(slot_at(kv, slot_of(rows, b, key))[i]);
        for (std::int64_t t = row.first * heads; t < (row.first + row.tokens) * heads; ++t)
            for (std::int64_t i = 0; i < value; ++i) {
                const float factor = to_float(q[t * query + i % query]) + 0.5f;
                out[t * value + i] =
                    to_bf16(row.weight * factor * sum[static_cast<std::size_t>(i % kLatent)] /
                            static_cast<float>(row.keys + 1));
            }
    }
}

void write_keys(const AppendCall& call, const float* latent, std::int64_t latent_stride,
                const float* rope, std::int64_t rope_stride) {
    for (std::int64_t t = 0; t < call.tokens; ++t) {
        if (call.slot[t] < 0) continue;
        Bf16* to = slot_at(call.kv, call.slot[t]);
        for (std::int64_t i = 0; i < kLatent; ++i) to[i] = to_bf16(latent[t * latent_stride + i]);
        for (std::int64_t i = 0; i < mla::kRope; ++i)
            to[kLatent + i] = to_bf16(rope[t * rope_stride + i]);
        if (call.nonfinite != nullptr) call.nonfinite[t] = 1;
    }
}

}  // namespace

namespace mla {

Expected<void> append_raw(OpContext& context, const AppendCall& call, const RawKeys& keys) {
    const LaunchGrant grant = context.order.launch(cuda::append_raw_needs(call, keys));
    queue({.name = "append_raw",
           .body =
               [=] {
                   std::vector<float> made(static_cast<std::size_t>(call.tokens * kKey));
                   for (std::int64_t t = 0; t < call.tokens; ++t)
                       for (std::int64_t i = 0; i < kKey; ++i)
                           made[static_cast<std::size_t>(t * kKey + i)] =
                               keys.kv_a[t * keys.kv_a_stride + i] *
                               (i < kLatent ? keys.norm_weight[i]
                                            : keys.cos_sin[t * keys.cos_sin_stride + i - kLatent]);
                   write_keys(call, made.data(), kKey, made.data() + kLatent, kKey);
                   const BesideNorm& beside = keys.beside;
                   for (std::int64_t t = 0; t < call.tokens && beside.x.data != nullptr; ++t)
                       for (std::int64_t i = 0; i < beside.x.cols; ++i)
                           reinterpret_cast<Bf16*>(beside.out.data)[t * beside.out.stride + i] =
                               to_bf16(reinterpret_cast<const float*>(
                                           beside.x.data)[t * beside.x.stride + i] *
                                       beside.weight[i]);
               },
           .release = grant.holds_next ? Release::behind_wait : Release::at_once,
           .grant = grant});
    return {};
}

}  // namespace mla

namespace order_test {

Expected<void> FakeKernels::plan(OpContext& context, const AbsorbedCall& call) const {
    context.order.launch(mla::cuda::plan_needs(call, range_of(call.plan, 2 * 4096)));
    queue({.name = "the plan of attention",
           .body =
               [call] {
                   auto* plan = reinterpret_cast<std::int32_t*>(call.plan);
                   for (std::int64_t b = 0; b < call.rows.rows; ++b) {
                       mla::RaggedRows rows = call.rows;
                       const Row row = read_row(rows, {}, nullptr, b);
                       plan[b] = static_cast<std::int32_t>(row.weight * 100.0f) +
                                 static_cast<std::int32_t>(row.tokens + row.keys);
                       plan[b] += rows.block_table[mla::table_of(rows, b) * rows.block_stride];
                   }
                   call.plan[4096] = std::byte{0};
               },
           .release = Release::behind_wait});
    return {};
}

Expected<void> FakeKernels::absorbed(OpContext& context, const AbsorbedCall& call) const {
    const Arena::Mark mark(context.arena);
    auto* partial = context.arena.take<std::byte>(4096);
    for (int launch = 0; launch < launches_; ++launch) {
        const LaunchGrant grant = context.order.launch(
            mla::cuda::absorbed_needs(call, {.plan = range_of(call.plan, 4096),
                                             .counters = range_of(call.plan + 4096, 4096),
                                             .partial = range_of(partial, 4096)}));
        const auto read = std::make_shared<std::vector<Row>>();
        const auto load = [call, read] {
            for (std::int64_t b = 0; b < call.rows.rows; ++b)
                read->push_back(read_row(call.rows, call.kv,
                                         reinterpret_cast<const std::int32_t*>(call.plan), b));
        };
        Kernel kernel{.name = "absorbed attention",
                      .release = grant.ahead ? Release::at_once : Release::behind_wait,
                      .grant = grant};
        if (grant.ahead) kernel.ahead = load;
        kernel.body = [=] {
            read->resize(grant.ahead ? read->size() : 0);
            if (!grant.ahead) load();
            call.plan[4096] ^= std::byte{1};
            *reinterpret_cast<std::uint64_t*>(partial) += 1;
            attend(call.rows, call.kv, *read, call.heads, reinterpret_cast<const Bf16*>(call.q),
                   kKey, reinterpret_cast<Bf16*>(call.out), kLatent);
            read->clear();
        };
        queue(std::move(kernel));
    }
    return {};
}

Expected<void> FakeKernels::decompressed(OpContext& context,
                                         const mla::DecompressedCall& call) const {
    const Arena::Mark mark(context.arena);
    auto* scratch = context.arena.take<std::byte>(4096);
    context.order.launch(mla::cuda::decompressed_needs(call, range_of(scratch, 4096)));
    queue({.name = "decompressed attention",
           .body =
               [=] {
                   std::vector<Row> read;
                   for (std::int64_t b = 0; b < call.rows.rows; ++b)
                       read.push_back(read_row(call.rows, call.kv, nullptr, b));
                   *reinterpret_cast<std::uint64_t*>(scratch) = 7;
                   const mla::DecompressedCall& c = call;
                   attend(c.rows, c.kv, read, c.heads, reinterpret_cast<const Bf16*>(c.q),
                          c.head_dims().query(), reinterpret_cast<Bf16*>(c.out),
                          c.head_dims().value);
               },
           .release = Release::behind_wait});
    return {};
}

Expected<void> FakeKernels::append(OpContext& context, const AppendCall& call) const {
    context.order.launch(mla::cuda::append_needs(call));
    queue({.name = "append", .body = [call] {
               write_keys(call, call.latent, call.latent_stride, call.rope, call.rope_stride);
           }});
    return {};
}

Expected<void> FakeKernels::compact(OpContext& context, const mla::CompactCall& call) const {
    context.order.launch(mla::cuda::compact_needs(call));
    queue({.name = "compact",
           .body =
               [call] {
                   for (std::int64_t i = 0; i < call.moves; ++i)
                       std::copy_n(slot_at(call.kv, call.source[i]), kKey,
                                   slot_at(call.kv, call.destination[i]));
               },
           .release = Release::behind_wait});
    return {};
}

}  // namespace order_test
}  // namespace espalier
