// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_builder.hpp"

#include <algorithm>
#include <limits>

#include "cache/kv_storage.hpp"

namespace espalier::batch {
namespace {

using cache::kNullPage;
using cache::kPageTokens;

Expected<void> check_tree(const RowSpec& row) {
    const std::size_t nodes = row.tokens.size();
    if (row.words.size() != nodes || row.depth.size() != nodes)
        return fail(ErrorKind::invalid, "a tree row of {} tokens has {} words and {} depths", nodes,
                    row.words.size(), row.depth.size());
    const std::int64_t tail = row.tail_len == 0 ? static_cast<std::int64_t>(nodes) : row.tail_len;
    if (tail < static_cast<std::int64_t>(nodes) || tail > mla::kMaxTail)
        return fail(ErrorKind::invalid,
                    "a tree row of {} tokens has a tail of {}: it must hold them and at most {}",
                    nodes, tail, mla::kMaxTail);
    return {};
}

Expected<void> check_row(const RowSpec& row) {
    const auto q_len = static_cast<std::int64_t>(row.tokens.size());
    if (q_len == 0) return fail(ErrorKind::invalid, "a row without tokens");
    const std::int64_t kv_len = row.first_slot + q_len;
    if (row.first_slot < 0 || kv_len > std::numeric_limits<std::int32_t>::max())
        return fail(ErrorKind::invalid, "a row at slot {} with {} tokens: slots are 31-bit",
                    row.first_slot, q_len);
    const std::int64_t pages = (kv_len + kPageTokens - 1) / kPageTokens;
    if (static_cast<std::int64_t>(row.block_table.size()) < pages)
        return fail(ErrorKind::invalid, "a row of {} slots needs {} pages but has {}", kv_len,
                    pages, row.block_table.size());
    for (std::int64_t page = 0; page < pages; ++page)
        if (row.block_table[static_cast<std::size_t>(page)] <= kNullPage)
            return fail(ErrorKind::invalid, "page {} of a row is {}: the null page is never owned",
                        page, row.block_table[static_cast<std::size_t>(page)]);
    if (row.form == Form::decompressed && row.mask != mla::MaskKind::causal)
        return fail(ErrorKind::unsupported, "decompressed rows are causal only");
    if (row.mask == mla::MaskKind::dense)
        return fail(ErrorKind::unsupported,
                    "rows of a batch are full, causal or tree; dense masks are the library's");
    for (std::size_t i = 0; i < row.gather.size(); ++i)
        if (row.gather[i] < 0 || row.gather[i] >= q_len ||
            (i > 0 && row.gather[i] <= row.gather[i - 1]))
            return fail(ErrorKind::invalid,
                        "gather index {} of a row of {} tokens: indices ascend below it",
                        row.gather[i], q_len);
    if (row.mask == mla::MaskKind::tree) return check_tree(row);
    return {};
}

template <typename T>
void extend(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void BatchBuilder::Part::reserve(std::size_t most_tokens, std::size_t rows, std::size_t pages) {
    for (auto* list : {&tokens, &position, &row_of}) list->reserve(most_tokens);
    slot.reserve(most_tokens);
    words.reserve(most_tokens);
    for (auto* list : {&q_indptr, &block_begin, &padded_indptr}) list->reserve(rows + 1);
    for (auto* list : {&kv_len, &tail_len}) list->reserve(rows);
    mask.reserve(rows);
    for (auto* list : {&block_table, &padded_table}) list->reserve(rows * pages);
}

void BatchBuilder::reserve(std::int64_t tokens, std::int64_t rows, std::int64_t gather,
                           std::int64_t pages) {
    const auto most_tokens = static_cast<std::size_t>(tokens);
    const auto most_rows = static_cast<std::size_t>(rows);
    for (Part* part : {&absorbed_, &decompressed_})
        part->reserve(most_tokens, most_rows, static_cast<std::size_t>(pages));
    wanted_.reserve(static_cast<std::size_t>(gather));
    gather_.reserve(static_cast<std::size_t>(gather));
    first_token_.reserve(2 * most_rows);
    first_gather_.reserve(2 * most_rows);
    for (auto* list : {&tokens_, &position_, &row_of_}) list->reserve(most_tokens);
    slot_.reserve(most_tokens);
    words_.reserve(most_tokens);
}

void BatchBuilder::Part::clear() {
    q_indptr.assign(1, 0);
    block_begin.assign(1, 0);
    for (auto* list : {&kv_len, &tail_len, &block_table, &tokens, &position, &row_of})
        list->clear();
    mask.clear();
    slot.clear();
    words.clear();
}

void BatchBuilder::clear() {
    absorbed_.clear();
    decompressed_.clear();
    wanted_.clear();
    first_gather_.clear();
    first_token_.clear();
}

Expected<void> BatchBuilder::add(const RowSpec& row) {
    if (absorbed_.q_indptr.empty()) clear();
    ESPALIER_RETURN_IF_ERROR(check_row(row));
    Part& part = row.form == Form::absorbed ? absorbed_ : decompressed_;
    const auto first_token = static_cast<std::int64_t>(part.tokens.size());
    first_gather_.push_back(static_cast<std::int64_t>(wanted_.size()));
    first_token_.push_back({row.form, first_token});
    for (const std::int32_t index : row.gather) wanted_.push_back({row.form, first_token + index});

    append_tokens(row, part);
    const auto q_len = static_cast<std::int32_t>(row.tokens.size());
    const std::int32_t kv_len = row.first_slot + q_len;
    const auto pages = static_cast<std::size_t>((kv_len + kPageTokens - 1) / kPageTokens);
    part.q_indptr.push_back(static_cast<std::int32_t>(part.tokens.size()));
    part.kv_len.push_back(kv_len);
    part.tail_len.push_back(row.tail_len == 0 ? std::min<std::int32_t>(q_len, mla::kMaxTail)
                                              : row.tail_len);
    part.mask.push_back(row.mask);
    part.block_table.insert(part.block_table.end(), row.block_table.begin(),
                            row.block_table.begin() + static_cast<std::ptrdiff_t>(pages));
    part.block_begin.push_back(static_cast<std::int32_t>(part.block_table.size()));
    return {};
}

void BatchBuilder::append_tokens(const RowSpec& row, Part& part) {
    const auto row_index = static_cast<std::int32_t>(first_gather_.size() - 1);
    const std::int32_t first_position =
        row.first_position < 0 ? row.first_slot : row.first_position;
    const bool tree = row.mask == mla::MaskKind::tree;
    for (std::size_t i = 0; i < row.tokens.size(); ++i) {
        const std::int64_t place = row.first_slot + static_cast<std::int64_t>(i);
        const std::int64_t page = row.block_table[static_cast<std::size_t>(place / kPageTokens)];
        part.tokens.push_back(row.tokens[i]);
        part.position.push_back(first_position +
                                (tree ? row.depth[i] : static_cast<std::int32_t>(i)));
        part.slot.push_back(page * kPageTokens + place % kPageTokens);
        part.row_of.push_back(row_index);
        part.words.push_back(tree ? row.words[i] : 0);
    }
}

BatchView BatchBuilder::finish(const Padding& padding) {
    if (absorbed_.q_indptr.empty()) clear();
    for (auto* list : {&tokens_, &position_, &row_of_, &gather_}) list->clear();
    slot_.clear();
    words_.clear();
    const auto count = [](const Part& part) {
        return static_cast<std::int64_t>(part.tokens.size());
    };
    BatchView view;
    view.cap_absorbed = std::max(count(absorbed_), padding.absorbed_tokens);
    view.cap_tokens =
        view.cap_absorbed + std::max(count(decompressed_), padding.decompressed_tokens);
    append_padded(absorbed_, view.cap_absorbed);
    append_padded(decompressed_, view.cap_tokens - view.cap_absorbed);
    cap_absorbed_ = view.cap_absorbed;
    for (const Place& wanted : wanted_)
        gather_.push_back(static_cast<std::int32_t>(index_of(wanted)));
    gather_.resize(static_cast<std::size_t>(
                       std::max(static_cast<std::int64_t>(wanted_.size()), padding.gather)),
                   -1);

    view.tokens = tokens_.data();
    view.position = position_.data();
    view.slot = slot_.data();
    view.row_of = row_of_.data();
    view.gather = gather_.data();
    view.cap_gather = static_cast<std::int64_t>(gather_.size());
    view.absorbed = finish_rows(absorbed_, 0, view.cap_absorbed, padding.rows);
    view.decompressed =
        finish_rows(decompressed_, view.cap_absorbed, view.cap_tokens, padding.rows);
    return view;
}

void BatchBuilder::append_padded(const Part& part, std::int64_t token_capacity) {
    extend(tokens_, part.tokens);
    extend(position_, part.position);
    extend(row_of_, part.row_of);
    extend(slot_, part.slot);
    extend(words_, part.words);
    const std::size_t size =
        tokens_.size() + static_cast<std::size_t>(token_capacity) - part.tokens.size();
    tokens_.resize(size, 0);
    position_.resize(size, 0);
    row_of_.resize(size, -1);
    slot_.resize(size, -1);
    words_.resize(size, 0);
}

mla::RaggedRows BatchBuilder::finish_rows(Part& part, std::int64_t token_begin,
                                          std::int64_t token_end, std::int32_t rows) {
    const auto live = static_cast<std::int32_t>(part.q_indptr.size()) - 1;
    const std::int32_t capacity = std::max(live, rows);
    const auto padded = static_cast<std::size_t>(capacity);
    part.padded_indptr.clear();
    for (const std::int32_t begin : part.q_indptr)
        part.padded_indptr.push_back(begin + static_cast<std::int32_t>(token_begin));
    part.padded_indptr.resize(padded + 1, part.padded_indptr.back());
    part.kv_len.resize(padded, 0);
    part.tail_len.resize(padded, 0);
    part.mask.resize(padded, mla::MaskKind::causal);

    mla::RaggedRows view;
    std::int32_t stride = 1;
    for (std::int32_t row = 0; row < live; ++row)
        stride = std::max(stride, part.block_begin[static_cast<std::size_t>(row) + 1] -
                                      part.block_begin[static_cast<std::size_t>(row)]);
    part.padded_table.assign(padded * static_cast<std::size_t>(stride), kNullPage);
    for (std::size_t row = 0; row < static_cast<std::size_t>(live); ++row)
        std::copy(part.block_table.begin() + part.block_begin[row],
                  part.block_table.begin() + part.block_begin[row + 1],
                  part.padded_table.begin() +
                      static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(stride)));
    for (std::size_t row = 0; row < padded; ++row) {
        view.max_q_len =
            std::max(view.max_q_len, part.padded_indptr[row + 1] - part.padded_indptr[row]);
        view.max_kv_len = std::max(view.max_kv_len, part.kv_len[row]);
    }
    view.rows = capacity;
    view.token_end = token_end;
    view.q_indptr = part.padded_indptr.data();
    view.kv_len = part.kv_len.data();
    view.block_table = part.padded_table.data();
    view.block_stride = stride;
    view.mask = part.mask.data();
    view.tail_len = part.tail_len.data();
    view.words = words_.data();
    return view;
}

}  // namespace espalier::batch
