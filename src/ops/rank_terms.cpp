// SPDX-License-Identifier: Apache-2.0
#include "ops/rank_terms.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "linalg/segments.hpp"
#include "parallel/ranks.hpp"

namespace espalier::ops {
namespace {

// Bytes that are gathered at once: enough that a round's latency does not show, few enough to stay
// in cache until they are added.
constexpr std::int64_t kGatherBytes = 4 << 20;

std::int64_t rows_at_once(std::int64_t row_bytes, std::int64_t rows) {
    return std::clamp<std::int64_t>(kGatherBytes / std::max<std::int64_t>(row_bytes, 1), 1,
                                    std::max<std::int64_t>(rows, 1));
}

std::int64_t row_bytes(const Matrix& matrix) {
    CHECK(matrix.stride == matrix.cols, "rows of {} columns every {} are exchanged", matrix.cols,
          matrix.stride);
    return matrix.cols * static_cast<std::int64_t>(bytes_of(matrix.dtype));
}

// Sizes in bytes, of each rank.
template <typename Count>
std::vector<std::size_t> sizes(const parallel::Ranks& ranks, std::int64_t unit, Count&& count) {
    std::vector<std::size_t> bytes;
    for (int rank = 0; rank < ranks.count(); ++rank)
        bytes.push_back(static_cast<std::size_t>(count(rank) * unit));
    return bytes;
}

// Every rank's rows to all, in place.
void gather_expert_rows(parallel::Ranks& ranks, const ExpertRows& experts) {
    const std::vector<std::int32_t>& first = experts.deal->first;
    const std::int32_t* indptr = experts.plan.indptr;
    const auto pairs_before = [&](int rank) {
        return std::int64_t{indptr[first[static_cast<std::size_t>(rank)]]};
    };
    const std::int64_t unit = row_bytes(experts.rows);
    ranks.all_gather(
        experts.rows.data + pairs_before(ranks.rank()) * unit, experts.rows.data,
        sizes(ranks, unit, [&](int rank) { return pairs_before(rank + 1) - pairs_before(rank); }));
}

// Tokens [first, first + count) of all ranks' sums, as one rank has them: [whole · count, D].
SegmentSums gather_sums(parallel::Ranks& ranks, const SegmentSums& mine, std::int64_t tokens,
                        linalg::Part some, std::byte* room) {
    const std::int64_t unit = row_bytes(mine.sums);
    const auto of_rank = [&](int rank) {
        return linalg::part_of(std::int64_t{mine.whole}, rank, ranks.count());
    };
    std::byte* own = room + of_rank(ranks.rank()).first * some.count * unit;
    for (std::int32_t s = 0; s < mine.count; ++s)
        std::memcpy(own + s * some.count * unit, mine.sums.data + (s * tokens + some.first) * unit,
                    static_cast<std::size_t>(some.count * unit));
    ranks.all_gather(
        own, room, sizes(ranks, some.count * unit, [&](int rank) { return of_rank(rank).count; }));
    return {.sums = {room, DType::f32, mine.whole * some.count, mine.sums.cols, mine.sums.cols},
            .count = mine.whole};
}

// The experts' terms of tokens from `first` on.
ExpertRows from_token(ExpertRows experts, std::int64_t first) {
    experts.plan.expert += first * experts.top_k;
    experts.plan.weight += first * experts.top_k;
    experts.plan.pair_of += first * experts.top_k;
    return experts;
}

}  // namespace

parallel::Ranks* ranks_of(const OpContext& context) {
    return context.ranks != nullptr && context.ranks->count() > 1 ? context.ranks : nullptr;
}

int rank_of(const OpContext& context) {
    const parallel::Ranks* ranks = ranks_of(context);
    return ranks == nullptr ? 0 : ranks->rank();
}

void deal_pairs(const ExpertDeal& deal, const RouterRule& rule, std::int64_t tokens,
                const ExpertPlan& plan) {
    std::array<std::int32_t, kMaxExperts + 1> next{};
    const std::int64_t choices = tokens * rule.top_k;
    const auto place = [&](std::int64_t choice) {
        return static_cast<std::size_t>(deal.place[static_cast<std::size_t>(plan.expert[choice])]);
    };
    for (std::int64_t i = 0; i < choices; ++i)
        if (plan.pair_of[i] >= 0) ++next[place(i) + 1];
    for (std::size_t e = 0; e < static_cast<std::size_t>(rule.experts); ++e) next[e + 1] += next[e];
    std::copy_n(next.begin(), rule.experts + 1, plan.indptr);
    for (std::int64_t i = 0; i < choices; ++i) {
        if (plan.pair_of[i] < 0) continue;
        const std::int32_t pair = next[place(i)]++;
        plan.source_token[pair] = static_cast<std::int32_t>(i / rule.top_k);
        plan.pair_of[i] = pair;
    }
}

void add_rank_terms(const Operations& operations, OpContext& context, const Terms& terms,
                    const Matrix& residual) {
    parallel::Ranks& ranks = *ranks_of(context);
    Terms all = terms;
    if (terms.experts.deal != nullptr) {
        gather_expert_rows(ranks, terms.experts);
        all.experts.deal = nullptr;
    }
    const SegmentSums& mine = terms.segments;
    if (mine.whole == 0) return operations.add_terms(context, all, residual);
    const Arena::Mark mark(context.arena);
    const std::int64_t token_bytes = mine.whole * row_bytes(mine.sums);
    const std::int64_t most = rows_at_once(token_bytes, residual.rows);
    auto* room = context.arena.take<std::byte>(most * token_bytes);
    for (std::int64_t first = 0; first < residual.rows; first += most) {
        const linalg::Part some{first, std::min(most, residual.rows - first)};
        operations.add_terms(context,
                             {.experts = from_token(all.experts, first),
                              .segments = gather_sums(ranks, mine, residual.rows, some, room)},
                             residual.slice(first, some.count));
    }
}

namespace {

// Columns of each rank side by side, where rank r has columns[r] of them.
void gather_parts(OpContext& context, const Matrix& mine, const std::vector<std::int64_t>& columns,
                  const Matrix& all) {
    parallel::Ranks& ranks = *ranks_of(context);
    const auto element = static_cast<std::int64_t>(bytes_of(all.dtype));
    const std::int64_t unit = row_bytes(all), own = row_bytes(mine);
    const std::int64_t most = rows_at_once(unit, all.rows);
    const Arena::Mark mark(context.arena);
    auto* room = context.arena.take<std::byte>(most * unit);
    for (std::int64_t first = 0; first < all.rows; first += most) {
        const std::int64_t rows = std::min(most, all.rows - first);
        ranks.all_gather(mine.data + first * own, room, sizes(ranks, rows * element, [&](int rank) {
                             return columns[static_cast<std::size_t>(rank)];
                         }));
        const std::byte* from = room;
        std::byte* to = all.data + first * unit;
        for (const std::int64_t count : columns) {
            const auto bytes = static_cast<std::size_t>(count * element);
            for (std::int64_t row = 0; row < rows; ++row, from += bytes)
                std::memcpy(to + row * unit, from, bytes);
            to += bytes;
        }
    }
}

}  // namespace

void gather_columns(OpContext& context, const Matrix& mine, const Matrix& all) {
    const int count = ranks_of(context)->count();
    CHECK(mine.dtype == all.dtype && mine.rows == all.rows && mine.cols * count == all.cols,
          "{} [{}, {}] of {} ranks gathered to {} [{}, {}]", name_of(mine.dtype), mine.rows,
          mine.cols, count, name_of(all.dtype), all.rows, all.cols);
    gather_parts(context, mine,
                 std::vector<std::int64_t>(static_cast<std::size_t>(count), mine.cols), all);
}

void dealt_product(const Operations& operations, OpContext& context, const Matrix& x,
                   const WeightView& w, const Matrix& mine, const Matrix& y) {
    parallel::Ranks* ranks = ranks_of(context);
    if (ranks == nullptr) return operations.product(context, x, w, y, Store::assign);
    std::vector<std::int64_t> columns;
    for (int rank = 0; rank < ranks->count(); ++rank)
        columns.push_back(linalg::outputs_of(y.cols, rank, ranks->count()).count);
    const std::int64_t own = columns[static_cast<std::size_t>(ranks->rank())];
    CHECK(mine.cols == own && w.n == own && mine.rows == y.rows,
          "{} of {} outputs in [{}, {}], {} are this rank's", w.n, y.cols, mine.rows, mine.cols,
          own);
    if (own > 0) operations.product(context, x, w, mine, Store::assign);
    gather_parts(context, mine, columns, y);
}

std::size_t rank_scratch_bytes(std::int64_t widest) {
    return static_cast<std::size_t>(std::max(widest, kGatherBytes)) + 64;
}

}  // namespace espalier::ops
