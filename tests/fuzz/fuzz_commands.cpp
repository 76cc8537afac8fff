// SPDX-License-Identifier: Apache-2.0
// Any bytes as a command of another rank: refused with a message, or a batch and moves whose every
// number lies within what a device may be told; what is read writes and reads back as itself.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/commands.hpp"

namespace {

using namespace espalier;

constexpr batch::StepCapacity kMost{.absorbed_tokens = 24,
                                    .decompressed_tokens = 24,
                                    .absorbed_rows = 3,
                                    .decompressed_rows = 3,
                                    .gather = 8,
                                    .max_q_len = 16,
                                    .max_kv_len = 256,
                                    .table_rows = 3,
                                    .block_stride = 4};
constexpr batch::BatchBounds kBounds{.vocabulary = 100, .page_count = 9};

template <typename T>
const T& must(const Expected<T>& read) {
    if (!read) std::abort();
    return *read;
}

void check_step(FlatReader& reader) {
    engine::SharedBatches there(kMost);
    const auto batch = there.read(reader, kBounds);
    if (!batch && batch.error().message.empty()) std::abort();
    if (!batch) return;
    if (!check_batch(*batch, kBounds)) std::abort();
    for (const batch::BlockTableRow& table : batch->tables)
        for (const std::int32_t page : table.pages)
            if (page < 0 || page >= kBounds.page_count) std::abort();
    std::vector<std::byte> buffer;
    FlatWriter writer(buffer);
    engine::SharedBatches again_here(kMost), again_there(kMost);
    again_here.write(writer, *batch);
    FlatReader second(buffer);
    const auto again = again_there.read(second, kBounds);
    if (!(must(again).capacity == batch->capacity) ||
        !std::ranges::equal(again->bytes, batch->bytes) ||
        again->tables.size() != batch->tables.size())
        std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    FlatReader reader(std::as_bytes(std::span(data, size)));
    const auto command = engine::read_command(reader, 1);
    if (!command) return command.error().message.empty() ? (std::abort(), 0) : 0;
    if (*command == engine::Command::step) check_step(reader);
    if (*command == engine::Command::compact) {
        engine::SlotMoves moves;
        const auto read = engine::read_moves(reader, kBounds.page_count, moves);
        if (!read && read.error().message.empty()) std::abort();
    }
    if (*command == engine::Command::reserve) engine::read_capacity(reader);
    return 0;
}
