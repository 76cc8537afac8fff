// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_check.hpp"

#include <algorithm>
#include <cstring>

namespace espalier::batch {
namespace {

Expected<void> check_between(const char* what, std::int64_t value, std::int64_t least,
                             std::int64_t most) {
    if (value >= least && value <= most) return {};
    return fail(ErrorKind::invalid, "a batch with {} {}, not within {}…{}", what, value, least,
                most);
}

Expected<void> check_capacity(const StepCapacity& capacity, const StepCapacity& most) {
    for (const std::int64_t value :
         {capacity.absorbed_tokens, capacity.decompressed_tokens,
          std::int64_t{capacity.absorbed_rows}, std::int64_t{capacity.decompressed_rows},
          capacity.gather, std::int64_t{capacity.max_q_len}, std::int64_t{capacity.max_kv_len},
          std::int64_t{capacity.table_rows}, capacity.block_stride, capacity.total_splits})
        if (value < 0) return fail(ErrorKind::invalid, "a batch with a capacity of {}", value);
    return most.check_holds(capacity);
}

Expected<void> check_tokens(const BatchView& view, const StepCapacity& most,
                            const BatchBounds& bounds, std::int64_t rows) {
    for (std::int64_t i = 0; i < view.cap_tokens; ++i) {
        ESPALIER_RETURN_IF_ERROR(check_between("token", view.tokens[i], 0, bounds.vocabulary - 1));
        ESPALIER_RETURN_IF_ERROR(check_between("position", view.position[i], 0, most.max_kv_len));
        ESPALIER_RETURN_IF_ERROR(
            check_between("slot", view.slot[i], -1, bounds.page_count * cache::kPageTokens - 1));
        ESPALIER_RETURN_IF_ERROR(check_between("row", view.row_of[i], -1, rows - 1));
    }
    for (std::int64_t i = 0; i < view.cap_gather; ++i)
        ESPALIER_RETURN_IF_ERROR(
            check_between("gathered token", view.gather[i], -1, view.cap_tokens - 1));
    return {};
}

Expected<void> check_words(const mla::RaggedRows& rows, std::int64_t row) {
    const std::int32_t tail = rows.tail_len[row];
    for (std::int32_t i = rows.q_indptr[row]; i < rows.q_indptr[row + 1]; ++i)
        if (tail < mla::kMaxTail && rows.words[i] >> tail != 0)
            return fail(ErrorKind::invalid, "a batch with word {:#x} over a tail of {} slots",
                        rows.words[i], tail);
    return {};
}

Expected<void> check_row(const mla::RaggedRows& rows, std::int64_t row, const StepCapacity& most,
                         bool trees) {
    const std::int64_t q_len = std::int64_t{rows.q_indptr[row + 1]} - rows.q_indptr[row];
    ESPALIER_RETURN_IF_ERROR(check_between("tokens in a row", q_len, 0, rows.max_q_len));
    const std::int64_t longest =
        std::min<std::int64_t>(rows.max_kv_len, most.block_stride * cache::kPageTokens);
    ESPALIER_RETURN_IF_ERROR(check_between("slots in a row", rows.kv_len[row], q_len, longest));
    ESPALIER_RETURN_IF_ERROR(
        check_between("block table", rows.table_row[row], 0, most.table_rows - 1));
    // A mask is a byte of any value here.
    std::uint8_t mask = 0;
    std::memcpy(&mask, rows.mask + row, 1);
    const bool tree = mask == static_cast<std::uint8_t>(mla::MaskKind::tree);
    const bool plain = mask == static_cast<std::uint8_t>(mla::MaskKind::causal) ||
                       mask == static_cast<std::uint8_t>(mla::MaskKind::full);
    if (!plain && !(tree && trees)) return fail(ErrorKind::invalid, "a batch with mask {}", mask);
    const std::int64_t least = std::min<std::int64_t>(q_len, mla::kMaxTail);
    ESPALIER_RETURN_IF_ERROR(
        check_between("slots in a tail", rows.tail_len[row], least,
                      std::min<std::int64_t>(mla::kMaxTail, rows.kv_len[row])));
    if (!tree) return {};
    ESPALIER_RETURN_IF_ERROR(check_between("nodes in a tree", q_len, 0, rows.tail_len[row]));
    return check_words(rows, row);
}

Expected<void> check_rows(const mla::RaggedRows& rows, std::int64_t first_token,
                          const StepCapacity& most, bool trees) {
    if (rows.rows == 0 && rows.token_end == first_token) return {};  // they are not looked at
    ESPALIER_RETURN_IF_ERROR(
        check_between("first token of its rows", rows.q_indptr[0], first_token, rows.token_end));
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        ESPALIER_RETURN_IF_ERROR(check_between("end of a row", rows.q_indptr[row + 1],
                                               rows.q_indptr[row], rows.token_end));
        ESPALIER_RETURN_IF_ERROR(check_row(rows, row, most, trees));
    }
    return {};
}

}  // namespace

Expected<void> check_batch(const HostBatch& batch, const BatchBounds& bounds) {
    ESPALIER_RETURN_IF_ERROR(check_capacity(batch.capacity, batch.most));
    const std::size_t bytes = BatchLayout(batch.capacity).bytes;
    if (batch.bytes.size() != bytes)
        return fail(ErrorKind::invalid, "a batch of {} bytes, not {}", batch.bytes.size(), bytes);
    const BatchView view = view_batch(batch.capacity, batch.bytes.data(), nullptr);
    ESPALIER_RETURN_IF_ERROR(check_tokens(
        view, batch.most, bounds, std::int64_t{view.absorbed.rows} + view.decompressed.rows));
    ESPALIER_RETURN_IF_ERROR(check_rows(view.absorbed, 0, batch.most, true));
    return check_rows(view.decompressed, view.cap_absorbed, batch.most, false);
}

}  // namespace espalier::batch
