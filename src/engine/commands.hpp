// SPDX-License-Identifier: Apache-2.0
// What the first rank tells the others: one flat buffer per call, in the order of its own calls. A
// command that arrives is checked as if another program had written it: lengths, and every number
// that a device would use as a place.
//
//   set up   measure, open, target, reserve        (runtime/rank_messages.hpp has the first three)
//   work     step, compact, draft_*, beat
//   end      close_target, close_model, stop
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/flat_buffer.hpp"
#include "batch/batch_check.hpp"

namespace espalier::engine {

enum class Command : std::uint32_t {
    stop,  // the process ends
    measure,
    open,
    close_model,
    target,
    close_target,
    reserve,
    step,
    compact,
    draft_taps,
    draft_kv,
    draft_roots,
    draft_level,
    beat,  // nothing: a rank that hangs is found while there is no work
};
inline constexpr std::uint32_t kCommands = static_cast<std::uint32_t>(Command::beat) + 1;
std::string_view name_of(Command command);
// Commands that set up and are answered: they take as long as they take.
constexpr bool is_setup(Command command) {
    return command == Command::measure || command == Command::open || command == Command::target;
}

// Bytes of a command at most: a step of 2^20 tokens takes 40 MB.
inline constexpr std::size_t kMostCommandBytes = std::size_t{1} << 26;

// Begins a command; serial: of the first rank's commands, counted from 1.
void begin_command(FlatWriter& writer, Command command, std::uint64_t serial);
// An error: no command, or not the one that comes next.
Expected<Command> read_command(FlatReader& reader, std::uint64_t serial);

void write_capacity(FlatWriter& writer, const batch::StepCapacity& capacity);
batch::StepCapacity read_capacity(FlatReader& reader);

// Block tables as both ends of a channel know them, so that a batch carries what has changed.
class SharedTables {
  public:
    SharedTables() = default;
    // most: of the batches' builder.
    explicit SharedTables(const batch::StepCapacity& most);

    void write(FlatWriter& writer, std::span<const batch::BlockTableRow> tables);
    // Rows that borrow from here. An error names a row or page outside its bounds.
    Expected<std::span<const batch::BlockTableRow>> read(FlatReader& reader,
                                                         std::int64_t page_count);

  private:
    std::span<std::int32_t> pages(std::int32_t row, std::size_t count);

    std::int32_t rows_ = 0;
    std::int64_t stride_ = 0;
    std::vector<std::int32_t> entries_;  // [rows, stride]
    std::vector<batch::BlockTableRow> read_;
    std::vector<std::int32_t> changed_;
};

// Batches of one builder, from one end to the other.
class SharedBatches {
  public:
    SharedBatches() = default;
    explicit SharedBatches(const batch::StepCapacity& most) : most_(most), tables_(most) {}

    const batch::StepCapacity& most() const { return most_; }
    void write(FlatWriter& writer, const batch::HostBatch& batch);
    // Borrows from here until the next read.
    Expected<batch::HostBatch> read(FlatReader& reader, const batch::BatchBounds& bounds);
    // Without block tables: those of the last batch with them.
    void write_level(FlatWriter& writer, const batch::StepCapacity& capacity,
                     std::span<const std::byte> bytes);
    Expected<batch::HostBatch> read_level(FlatReader& reader, const batch::BatchBounds& bounds);

  private:
    Expected<batch::HostBatch> read_bytes(FlatReader& reader);

    struct alignas(64) CacheLine {
        std::byte bytes[64];
    };
    batch::StepCapacity most_;
    SharedTables tables_;
    std::vector<CacheLine> memory_;
};

// Moves of slots: as Target::compact has them.
struct SlotMoves {
    std::vector<std::int64_t> source, destination;
};
void write_moves(FlatWriter& writer, std::span<const std::int64_t> source,
                 std::span<const std::int64_t> destination);
Expected<void> read_moves(FlatReader& reader, std::int64_t page_count, SlotMoves& moves);

}  // namespace espalier::engine
