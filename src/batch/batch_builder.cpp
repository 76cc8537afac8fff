// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_builder.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "mla/types.hpp"

namespace espalier::batch {
namespace {

using cache::kNullPage;
using cache::kPageTokens;

constexpr std::int32_t kUnclaimed = -1;

std::int64_t slots_of(const RowSpec& row) {
    return row.first_slot + static_cast<std::int64_t>(row.tokens.size()) + row.later_slots;
}

std::size_t pages_of(const RowSpec& row) {
    return static_cast<std::size_t>(cache::pages_for(slots_of(row)));
}

Expected<void> check_pages(const RowSpec& row) {
    const std::size_t pages = pages_of(row);
    if (row.block_table.size() < pages)
        return fail(ErrorKind::invalid, "a row of {} slots needs {} pages but has {}",
                    slots_of(row), pages, row.block_table.size());
    for (std::size_t page = 0; page < pages; ++page)
        if (row.block_table[page] <= kNullPage)
            return fail(ErrorKind::invalid, "page {} of a row is {}: the null page is never owned",
                        page, row.block_table[page]);
    return {};
}

Expected<void> check_mask(const RowSpec& row) {
    if (row.form == Form::decompressed && row.mask != mla::MaskKind::causal)
        return fail(ErrorKind::unsupported, "decompressed rows are causal only");
    if (row.mask == mla::MaskKind::dense)
        return fail(ErrorKind::unsupported,
                    "rows of a batch are full, causal or tree; dense masks are the library's");
    if (row.mask != mla::MaskKind::tree) {
        if (row.tail_len == 0) return {};
        return fail(ErrorKind::invalid, "a tail of {} slots in a row without words", row.tail_len);
    }
    const std::size_t nodes = row.tokens.size();
    if (row.words.size() != nodes || row.depth.size() != nodes)
        return fail(ErrorKind::invalid, "a tree row of {} tokens has {} words and {} depths", nodes,
                    row.words.size(), row.depth.size());
    if (nodes > mla::kMaxTail)
        return fail(ErrorKind::invalid, "a tree row of {} tokens: at most {} are possible", nodes,
                    mla::kMaxTail);
    const auto q_len = static_cast<std::int32_t>(nodes);
    if (row.tail_len == 0) return {};
    if (row.tail_len < q_len || row.tail_len > mla::kMaxTail ||
        row.tail_len - q_len > row.first_slot)
        return fail(ErrorKind::invalid,
                    "a tail of {} slots: between the row's {} tokens and {} are possible, and no "
                    "more than the {} slots before it",
                    row.tail_len, q_len, mla::kMaxTail, row.first_slot);
    return {};
}

Expected<void> check_row(const RowSpec& row) {
    const auto q_len = static_cast<std::int64_t>(row.tokens.size());
    if (q_len == 0) return fail(ErrorKind::invalid, "a row without tokens");
    if (row.first_slot < 0 || row.first_slot + q_len > std::numeric_limits<std::int32_t>::max())
        return fail(ErrorKind::invalid, "a row at slot {} with {} tokens: slots are 31-bit",
                    row.first_slot, q_len);
    if (row.later_slots < 0)
        return fail(ErrorKind::invalid, "{} slots behind a row", row.later_slots);
    if (row.gather < 0 || row.gather > q_len)
        return fail(ErrorKind::invalid, "{} of a row's {} tokens want logits", row.gather, q_len);
    if (row.table_row < 0)
        return fail(ErrorKind::invalid, "a row has block table {}", row.table_row);
    ESPALIER_RETURN_IF_ERROR(check_pages(row));
    return check_mask(row);
}

}  // namespace

Expected<void> HostBatch::check_tokens(std::int64_t vocabulary) const {
    const BatchView view = view_batch(capacity, bytes.data(), nullptr);
    for (std::int64_t token = 0; token < view.cap_tokens; ++token)
        if (view.tokens[token] < 0 || view.tokens[token] >= vocabulary)
            return fail(ErrorKind::invalid, "token id {} is outside the vocabulary of {}",
                        view.tokens[token], vocabulary);
    return {};
}

std::int32_t BatchBuilder::Row::tail_len() const {
    if (spec.tail_len > 0) return spec.tail_len;
    return std::min<std::int32_t>(q_len(), mla::kMaxTail);
}

// The arrays of BatchLayout, to be written.
struct BatchBuilder::Arrays {
    struct Rows {
        std::int32_t *q_indptr, *kv_len, *tail_len, *table_row;
        mla::MaskKind* mask;
        std::int64_t capacity, token_begin;
    };
    StepCapacity capacity;
    std::int32_t *tokens, *position, *row_of, *gather;
    std::int64_t* slot;
    std::uint64_t* words;
    Rows absorbed, decompressed;

    Arrays(const StepCapacity& sizes, std::byte* base) : capacity(sizes) {
        const BatchLayout layout(sizes);
        const auto ints = [base](std::size_t at) {
            return reinterpret_cast<std::int32_t*>(base + at);
        };
        const auto rows = [&](const BatchLayout::Rows& of, std::int64_t count, std::int64_t begin) {
            return Rows{.q_indptr = ints(of.q_indptr),
                        .kv_len = ints(of.kv_len),
                        .tail_len = ints(of.tail_len),
                        .table_row = ints(of.table_row),
                        .mask = reinterpret_cast<mla::MaskKind*>(base + of.mask),
                        .capacity = count,
                        .token_begin = begin};
        };
        tokens = ints(layout.tokens);
        position = ints(layout.position);
        row_of = ints(layout.row_of);
        gather = ints(layout.gather);
        slot = reinterpret_cast<std::int64_t*>(base + layout.slot);
        words = reinterpret_cast<std::uint64_t*>(base + layout.words);
        absorbed = rows(layout.absorbed, sizes.absorbed_rows, 0);
        decompressed = rows(layout.decompressed, sizes.decompressed_rows, sizes.absorbed_tokens);
    }

    void pad_tokens(std::int64_t first, std::int64_t last) const {
        std::fill(tokens + first, tokens + last, 0);
        std::fill(position + first, position + last, 0);
        std::fill(row_of + first, row_of + last, -1);
        std::fill(slot + first, slot + last, -1);
    }
};

BatchBuilder::BatchBuilder(const StepCapacity& most)
    : most_(most),
      table_owner_(static_cast<std::size_t>(most.table_rows), kUnclaimed),
      memory_(BatchLayout(most).bytes) {
    const auto rows = static_cast<std::size_t>(most.absorbed_rows + most.decompressed_rows);
    rows_.reserve(rows);
    tables_.reserve(rows);
    clear();
}

void BatchBuilder::clear() {
    for (const BlockTableRow& table : tables_)
        table_owner_[static_cast<std::size_t>(table.row)] = kUnclaimed;
    rows_.clear();
    tables_.clear();
    need_ = {};
}

StepCapacity BatchBuilder::need_with(const RowSpec& row) const {
    const auto q_len = static_cast<std::int32_t>(row.tokens.size());
    StepCapacity need = need_;
    const bool absorbed = row.form == Form::absorbed;
    (absorbed ? need.absorbed_tokens : need.decompressed_tokens) += q_len;
    (absorbed ? need.absorbed_rows : need.decompressed_rows) += 1;
    if (absorbed && most_.total_splits > 0)
        need.total_splits += mla::row_splits(q_len, row.first_slot + q_len);
    need.gather += row.gather;
    need.max_q_len = std::max(need.max_q_len, q_len);
    need.max_kv_len = std::max(need.max_kv_len, row.first_slot + q_len);
    need.table_rows = std::max(need.table_rows, row.table_row + 1);
    need.block_stride = std::max(need.block_stride, static_cast<std::int64_t>(pages_of(row)));
    return need;
}

Expected<void> BatchBuilder::add(const RowSpec& row) {
    ESPALIER_RETURN_IF_ERROR(check_row(row));
    const StepCapacity need = need_with(row);
    ESPALIER_RETURN_IF_ERROR(most_.check_holds(need));
    ESPALIER_RETURN_IF_ERROR(claim_table(row));
    rows_.push_back(
        {row, row.form == Form::absorbed ? need_.absorbed_tokens : need_.decompressed_tokens});
    need_ = need;
    return {};
}

// The two rows of one chunk share a block table; others would overwrite each other's.
Expected<void> BatchBuilder::claim_table(const RowSpec& row) {
    const auto pages = row.block_table.first(pages_of(row));
    std::int32_t& owner = table_owner_[static_cast<std::size_t>(row.table_row)];
    if (owner != kUnclaimed) {
        const auto other = tables_[static_cast<std::size_t>(owner)].pages;
        const std::size_t common = std::min(pages.size(), other.size());
        if (!std::ranges::equal(pages.first(common), other.first(common)))
            return fail(ErrorKind::invalid, "rows {} and {} have block table {} with other pages",
                        owner, rows_.size(), row.table_row);
    }
    if (owner == kUnclaimed) owner = static_cast<std::int32_t>(tables_.size());
    tables_.push_back({row.table_row, pages});
    return {};
}

Expected<HostBatch> BatchBuilder::finish(const StepCapacity& capacity) {
    ESPALIER_RETURN_IF_ERROR(capacity.check_holds(need_));
    ESPALIER_RETURN_IF_ERROR(most_.check_holds(capacity));
    return lay_out(capacity);
}

HostBatch BatchBuilder::lay_out(const StepCapacity& capacity) {
    const Arrays arrays(capacity, memory_.data());
    cap_absorbed_ = capacity.absorbed_tokens;
    std::int32_t* gathered = arrays.gather;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        lay_tokens(arrays, i);
        const auto end = static_cast<std::int32_t>(first_token(i)) + rows_[i].q_len();
        for (std::int32_t token = end - rows_[i].spec.gather; token < end; ++token)
            *gathered++ = token;
    }
    std::fill(gathered, arrays.gather + capacity.gather, -1);
    lay_rows(arrays, Form::absorbed);
    lay_rows(arrays, Form::decompressed);
    return {.capacity = capacity,
            .most = most_,
            .bytes = std::span(memory_).first(BatchLayout(capacity).bytes),
            .tables = tables_};
}

void BatchBuilder::lay_tokens(const Arrays& arrays, std::size_t row) const {
    const RowSpec& spec = rows_[row].spec;
    const std::int64_t first = first_token(row);
    const bool tree = spec.mask == mla::MaskKind::tree;
    const std::int32_t root_slot = rows_[row].kv_len() - rows_[row].tail_len();
    std::ranges::copy(spec.tokens, arrays.tokens + first);
    for (std::int32_t i = 0; i < rows_[row].q_len(); ++i) {
        const std::int32_t place = spec.first_slot + i;
        const auto index = static_cast<std::size_t>(i);
        const std::int64_t page = spec.block_table[static_cast<std::size_t>(place / kPageTokens)];
        arrays.position[first + i] = tree ? root_slot + spec.depth[index] : place;
        arrays.slot[first + i] = page * kPageTokens + place % kPageTokens;
        arrays.row_of[first + i] = static_cast<std::int32_t>(row);
        if (spec.form == Form::absorbed) arrays.words[first + i] = tree ? spec.words[index] : 0;
    }
}

// The rows of one form, and the pads behind them and their tokens.
void BatchBuilder::lay_rows(const Arrays& arrays, Form form) const {
    const bool absorbed = form == Form::absorbed;
    const Arrays::Rows& to = absorbed ? arrays.absorbed : arrays.decompressed;
    std::int64_t count = 0;
    auto end = static_cast<std::int32_t>(to.token_begin);
    for (const Row& row : rows_) {
        if (row.spec.form != form) continue;
        to.q_indptr[count] = end;
        to.kv_len[count] = row.kv_len();
        to.tail_len[count] = row.tail_len();
        to.table_row[count] = row.spec.table_row;
        to.mask[count] = row.spec.mask;
        end += row.q_len();
        ++count;
    }
    std::fill(to.q_indptr + count, to.q_indptr + to.capacity + 1, end);
    std::fill(to.kv_len + count, to.kv_len + to.capacity, 0);
    std::fill(to.tail_len + count, to.tail_len + to.capacity, 0);
    std::fill(to.table_row + count, to.table_row + to.capacity, 0);
    std::fill(to.mask + count, to.mask + to.capacity, mla::MaskKind::causal);
    const std::int64_t last = to.token_begin + (absorbed ? arrays.capacity.absorbed_tokens
                                                         : arrays.capacity.decompressed_tokens);
    arrays.pad_tokens(end, last);
    if (absorbed) std::fill(arrays.words + end, arrays.words + last, 0);
}

std::int64_t BatchBuilder::first_token(std::size_t row) const {
    const Row& of = rows_.at(row);
    return of.first_token + (of.spec.form == Form::absorbed ? 0 : cap_absorbed_);
}

}  // namespace espalier::batch
