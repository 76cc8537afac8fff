// SPDX-License-Identifier: Apache-2.0
#include "engine/commands.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"

namespace espalier::engine {
namespace {

constexpr std::uint32_t kCommandMagic = 0x45535043;
constexpr std::array<std::string_view, kCommands> kCommandNames = {
    "stop", "measure", "open",       "close_model", "target",      "close_target", "reserve",
    "step", "compact", "draft_taps", "draft_kv",    "draft_roots", "draft_level",  "beat"};

}  // namespace

std::string_view name_of(Command command) {
    return kCommandNames[static_cast<std::size_t>(command)];
}

void begin_command(FlatWriter& writer, Command command, std::uint64_t serial) {
    writer.number(kCommandMagic);
    writer.number(static_cast<std::uint32_t>(command));
    writer.number(serial);
}

Expected<Command> read_command(FlatReader& reader, std::uint64_t serial) {
    const auto magic = reader.number<std::uint32_t>();
    const auto kind = reader.number<std::uint32_t>();
    const auto number = reader.number<std::uint64_t>();
    if (magic != kCommandMagic || kind >= kCommands)
        return fail(ErrorKind::invalid, "a command of kind {}: there are {}", kind, kCommands);
    if (number != serial)
        return fail(ErrorKind::invalid, "command {} where {} comes next", number, serial);
    return static_cast<Command>(kind);
}

void write_capacity(FlatWriter& writer, const batch::StepCapacity& capacity) {
    writer.number(capacity.absorbed_tokens);
    writer.number(capacity.decompressed_tokens);
    writer.number(capacity.absorbed_rows);
    writer.number(capacity.decompressed_rows);
    writer.number(capacity.gather);
    writer.number(capacity.max_q_len);
    writer.number(capacity.max_kv_len);
    writer.number(capacity.table_rows);
    writer.number(capacity.block_stride);
    writer.number(capacity.total_splits);
}

batch::StepCapacity read_capacity(FlatReader& reader) {
    batch::StepCapacity capacity;
    capacity.absorbed_tokens = reader.number<std::int64_t>();
    capacity.decompressed_tokens = reader.number<std::int64_t>();
    capacity.absorbed_rows = reader.number<std::int32_t>();
    capacity.decompressed_rows = reader.number<std::int32_t>();
    capacity.gather = reader.number<std::int64_t>();
    capacity.max_q_len = reader.number<std::int32_t>();
    capacity.max_kv_len = reader.number<std::int32_t>();
    capacity.table_rows = reader.number<std::int32_t>();
    capacity.block_stride = reader.number<std::int64_t>();
    capacity.total_splits = reader.number<std::int64_t>();
    return capacity;
}

SharedTables::SharedTables(const batch::StepCapacity& most)
    : rows_(most.table_rows),
      stride_(most.block_stride),
      entries_(static_cast<std::size_t>(most.table_rows * most.block_stride), cache::kNullPage) {}

std::span<std::int32_t> SharedTables::pages(std::int32_t row, std::size_t count) {
    return std::span(entries_).subspan(static_cast<std::size_t>(row * stride_), count);
}

// Each row with its pages from the first that differs to the last.
void SharedTables::write(FlatWriter& writer, std::span<const batch::BlockTableRow> tables) {
    writer.number(static_cast<std::uint64_t>(tables.size()));
    for (const batch::BlockTableRow& table : tables) {
        CHECK(table.row >= 0 && table.row < rows_ && std::ssize(table.pages) <= stride_,
              "block table {} with {} pages: there are {} of {}", table.row, table.pages.size(),
              rows_, stride_);
        const std::span<std::int32_t> known = pages(table.row, table.pages.size());
        const auto first = static_cast<std::size_t>(std::ranges::mismatch(table.pages, known).in1 -
                                                    table.pages.begin());
        std::size_t last = table.pages.size();
        while (last > first && table.pages[last - 1] == known[last - 1]) --last;
        const auto changed = table.pages.subspan(first, last - first);
        std::ranges::copy(changed, known.begin() + static_cast<std::ptrdiff_t>(first));
        writer.number(table.row);
        writer.number(static_cast<std::uint64_t>(table.pages.size()));
        writer.number(static_cast<std::uint64_t>(first));
        writer.array(changed);
    }
}

Expected<std::span<const batch::BlockTableRow>> SharedTables::read(FlatReader& reader,
                                                                   std::int64_t page_count) {
    read_.clear();
    const auto tables = reader.number<std::uint64_t>();
    // The two rows of a chunk have one table each.
    if (tables > 2 * static_cast<std::uint64_t>(rows_))
        return fail(ErrorKind::invalid, "{} block tables of a batch for {} requests", tables,
                    rows_);
    for (std::uint64_t i = 0; i < tables; ++i) {
        const auto row = reader.number<std::int32_t>();
        const auto count = reader.number<std::uint64_t>();
        const auto first = reader.number<std::uint64_t>();
        reader.array(changed_);
        if (row < 0 || row >= rows_ || count > static_cast<std::uint64_t>(stride_) ||
            first > count || changed_.size() > count - first)
            return fail(ErrorKind::invalid,
                        "block table {} with {} pages, {} of them new from {} on: there are {} of "
                        "{}",
                        row, count, changed_.size(), first, rows_, stride_);
        for (const std::int32_t page : changed_)
            if (page < 0 || page >= page_count)
                return fail(ErrorKind::invalid, "page {} in a block table: there are {}", page,
                            page_count);
        const std::span<std::int32_t> known = pages(row, static_cast<std::size_t>(count));
        std::ranges::copy(changed_, known.begin() + static_cast<std::ptrdiff_t>(first));
        read_.push_back({row, known});
    }
    return read_;
}

void SharedBatches::write(FlatWriter& writer, const batch::HostBatch& batch) {
    write_level(writer, batch.capacity, batch.bytes);
    tables_.write(writer, batch.tables);
}

void SharedBatches::write_level(FlatWriter& writer, const batch::StepCapacity& capacity,
                                std::span<const std::byte> bytes) {
    write_capacity(writer, capacity);
    writer.array(bytes);
}

Expected<batch::HostBatch> SharedBatches::read_bytes(FlatReader& reader) {
    batch::HostBatch batch;
    batch.capacity = read_capacity(reader);
    batch.most = most_;
    const std::span<const std::byte> bytes = reader.bytes_of(1);
    memory_.resize((bytes.size() + sizeof(CacheLine) - 1) / sizeof(CacheLine));
    if (!bytes.empty()) std::memcpy(memory_.data(), bytes.data(), bytes.size());
    batch.bytes = {reinterpret_cast<const std::byte*>(memory_.data()), bytes.size()};
    return batch;
}

Expected<batch::HostBatch> SharedBatches::read(FlatReader& reader,
                                               const batch::BatchBounds& bounds) {
    ESPALIER_ASSIGN_OR_RETURN(batch::HostBatch batch, read_bytes(reader));
    ESPALIER_ASSIGN_OR_RETURN(batch.tables, tables_.read(reader, bounds.page_count));
    ESPALIER_RETURN_IF_ERROR(check_batch(batch, bounds));
    return batch;
}

Expected<batch::HostBatch> SharedBatches::read_level(FlatReader& reader,
                                                     const batch::BatchBounds& bounds) {
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch batch, read_bytes(reader));
    ESPALIER_RETURN_IF_ERROR(check_batch(batch, bounds));
    return batch;
}

void write_moves(FlatWriter& writer, std::span<const std::int64_t> source,
                 std::span<const std::int64_t> destination) {
    writer.array(source);
    writer.array(destination);
}

Expected<void> read_moves(FlatReader& reader, std::int64_t page_count, SlotMoves& moves) {
    reader.array(moves.source);
    reader.array(moves.destination);
    if (moves.source.size() != moves.destination.size())
        return fail(ErrorKind::invalid, "{} slots to move to {}", moves.source.size(),
                    moves.destination.size());
    for (const auto* slots : {&moves.source, &moves.destination})
        for (const std::int64_t slot : *slots)
            if (slot < 0 || slot >= page_count * cache::kPageTokens)
                return fail(ErrorKind::invalid, "slot {} to move: there are {}", slot,
                            page_count * cache::kPageTokens);
    return {};
}

}  // namespace espalier::engine
