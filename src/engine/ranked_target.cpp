// SPDX-License-Identifier: Apache-2.0
#include "engine/ranked_target.hpp"

#include <utility>

namespace espalier::engine {
namespace {

Expected<void> of_all_ranks(Expected<void> done) {
    if (!done) done.error().kind = ErrorKind::io;
    return done;
}

}  // namespace

Expected<void> RankedTarget::reserve(const StepRoom& room) {
    batches_ = SharedBatches(room.batch);
    channel_.send(Command::reserve,
                  [&](FlatWriter& writer) { write_capacity(writer, room.batch); });
    return own_->reserve(room);
}

// A token outside the vocabulary is refused before anybody hears of the step.
Expected<void> RankedTarget::run(const batch::HostBatch& batch,
                                 const ops::SamplingBatchBuilder* draws) {
    ESPALIER_RETURN_IF_ERROR(batch.check_tokens(info().vocabulary));
    channel_.send(Command::step, [&](FlatWriter& writer) { batches_.write(writer, batch); });
    return of_all_ranks(own_->run(batch, draws));
}

Expected<void> RankedTarget::compact(std::span<const std::int64_t> source,
                                     std::span<const std::int64_t> destination) {
    channel_.send(Command::compact,
                  [&](FlatWriter& writer) { write_moves(writer, source, destination); });
    return of_all_ranks(own_->compact(source, destination));
}

Expected<void> RankedTarget::beat() {
    channel_.send(Command::beat);
    return own_->beat();
}

void RankedPasses::log_taps(std::int64_t first, std::span<const std::int32_t> rows) {
    channel_.send(Command::draft_taps, [&](FlatWriter& writer) {
        writer.number(first);
        writer.array(rows);
    });
}

void RankedPasses::kv_half(std::int64_t tokens, std::int64_t waiting,
                           std::span<const std::byte> arrays) {
    channel_.send(Command::draft_kv, [&](FlatWriter& writer) {
        writer.number(tokens);
        writer.number(waiting);
        writer.array(arrays);
    });
}

void RankedPasses::roots(const batch::HostBatch& batch) {
    channel_.send(Command::draft_roots, [&](FlatWriter& writer) { batches_.write(writer, batch); });
}

void RankedPasses::level(const batch::StepCapacity& capacity, std::span<const std::byte> bytes,
                         std::span<const std::int32_t> parents) {
    channel_.send(Command::draft_level, [&](FlatWriter& writer) {
        batches_.write_level(writer, capacity, bytes);
        writer.array(parents);
    });
}

}  // namespace espalier::engine
