// SPDX-License-Identifier: Apache-2.0
#include "batch/device_batch.hpp"

#include <algorithm>

#include "batch/poison.hpp"

namespace espalier::batch {

Expected<void> DeviceBatch::make_room(const StepCapacity& most) {
    const std::size_t bytes = BatchLayout(most).bytes;
    if (bytes > memory_.bytes()) {
        ESPALIER_ASSIGN_OR_RETURN(memory_, device_->allocate(bytes));
    }
    if (most.table_rows <= tables_.rows() && most.block_stride <= tables_.stride()) return {};
    const std::int32_t rows = std::max(most.table_rows, tables_.rows());
    const std::int64_t stride = std::max(most.block_stride, tables_.stride());
    const auto entries = static_cast<std::size_t>(rows * stride);
    ESPALIER_ASSIGN_OR_RETURN(table_memory_, device_->allocate(entries * sizeof(std::int32_t)));
    tables_ = BlockTables(rows, stride);  // both hold null pages
    return {};
}

std::span<const std::byte> DeviceBatch::bytes_of(const HostBatch& batch) {
    if (!poison_) return batch.bytes;
    poisoned_.assign(batch.bytes.begin(), batch.bytes.end());
    poison_pads(batch.capacity, poisoned_);
    return poisoned_;
}

Expected<BatchView> DeviceBatch::upload(Stream stream, const HostBatch& batch) {
    ESPALIER_RETURN_IF_ERROR(make_room(batch.most));
    const std::span<const std::byte> bytes = bytes_of(batch);
    ESPALIER_RETURN_IF_ERROR(device_->upload(stream, memory_.data(), bytes.data(), bytes.size()));
    for (const BlockTableRow& table : batch.tables) tables_.set(table.row, table.pages);
    auto* entries = table_memory_.as<std::int32_t>();
    for (const BlockTables::Range& range : tables_.changes())
        ESPALIER_RETURN_IF_ERROR(device_->upload(
            stream, entries + range.first, tables_.entries() + range.first,
            static_cast<std::size_t>(range.last - range.first) * sizeof(std::int32_t)));
    tables_.forget_changes();
    StepCapacity capacity = batch.capacity;
    capacity.table_rows = tables_.rows();
    capacity.block_stride = tables_.stride();
    return view_batch(capacity, memory_.data(), entries);
}

}  // namespace espalier::batch
