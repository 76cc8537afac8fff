// SPDX-License-Identifier: Apache-2.0
#include "batch/poison.hpp"

#include <algorithm>
#include <vector>

#include "batch/batch_view.hpp"

namespace espalier::batch {

void poison_pads(const StepCapacity& capacity, std::span<std::byte> bytes) {
    std::vector<bool> covered(bytes.size(), false);
    const BatchView view = view_batch(capacity, bytes.data(), nullptr);
    const auto cover = [&]<typename T>(const T* array, std::int64_t count) {
        const auto first = reinterpret_cast<const std::byte*>(array) - bytes.data();
        std::fill_n(covered.begin() + first, count * static_cast<std::int64_t>(sizeof(T)), true);
    };
    cover(view.tokens, view.cap_tokens);
    cover(view.position, view.cap_tokens);
    cover(view.row_of, view.cap_tokens);
    cover(view.slot, view.cap_tokens);
    cover(view.gather, view.cap_gather);
    for (const mla::RaggedRows* rows : {&view.absorbed, &view.decompressed}) {
        cover(rows->q_indptr, rows->rows + 1);
        cover(rows->kv_len, rows->rows);
        cover(rows->tail_len, rows->rows);
        cover(rows->table_row, rows->rows);
        cover(rows->mask, rows->rows);
    }
    cover(view.absorbed.words, view.absorbed.q_indptr[view.absorbed.rows]);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        if (!covered[i]) bytes[i] = std::byte{0xFF};
}

}  // namespace espalier::batch
