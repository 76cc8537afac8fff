// SPDX-License-Identifier: Apache-2.0
#include "engine/follower.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace espalier::engine {
namespace {

Expected<void> check_within_bounds(const char* what, const std::int32_t* values, std::int64_t count,
                                   std::int64_t least, std::int64_t end) {
    for (std::int64_t i = 0; i < count; ++i)
        if (values[i] < least || values[i] >= end)
            return fail(ErrorKind::invalid, "{} {}, not within {}…{}", what, values[i], least,
                        end - 1);
    return {};
}

// The arrays of a KV half, of `waiting` entries of the backlog.
Expected<void> check_arrays(const draft::TokenArrays& arrays, std::int64_t tokens,
                            std::int64_t waiting, const batch::BatchBounds& bounds,
                            std::int64_t max_kv_len) {
    for (std::int64_t i = 0; i < tokens; ++i)
        if (arrays.slot[i] < -1 || arrays.slot[i] >= bounds.page_count * cache::kPageTokens)
            return fail(ErrorKind::invalid, "draft slot {}: there are {}", arrays.slot[i],
                        bounds.page_count * cache::kPageTokens);
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("token", arrays.tokens, tokens, 0, bounds.vocabulary));
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("position", arrays.position, tokens, 0, max_kv_len + 1));
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("state before a token", arrays.before, tokens, -1, waiting));
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("page of a state", arrays.tail_page, tokens, -1, bounds.page_count));
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("token behind a page", arrays.tail_token, tokens, 0, tokens));
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("state to keep", arrays.kept_entry, waiting, -1, waiting));
    return check_within_bounds("page to keep it", arrays.kept_page, waiting, 0, bounds.page_count);
}

}  // namespace

Follower::Follower(Parts parts) : parts_(std::move(parts)), batch_(parts_.model.device()) {
    if (parts_.drafts) levels_ = SharedBatches(parts_.drafts->most());
}

batch::BatchBounds Follower::bounds() const {
    return {.vocabulary = parts_.model.config().vocab_size,
            .page_count = parts_.storage->page_count()};
}

Expected<void> Follower::run(Command command, FlatReader& reader) {
    if (command == Command::beat) return reader.finish("beat");
    if (command == Command::reserve) return reserve(reader);
    if (!reserved_) return fail(ErrorKind::invalid, "before memory was reserved for it");
    if (command == Command::step) return step(reader);
    if (command == Command::compact) return compact(reader);
    if (parts_.drafts == nullptr) return fail(ErrorKind::invalid, "there is no draft model");
    if (command == Command::draft_taps) return log_taps(reader);
    if (command == Command::draft_kv) return kv_half(reader);
    if (command == Command::draft_roots) return draft_roots(reader);
    if (command == Command::draft_level) return draft_level(reader);
    return fail(ErrorKind::invalid, "no work of a target");
}

Expected<void> Follower::reserve(FlatReader& reader) {
    const batch::StepCapacity most = read_capacity(reader);
    ESPALIER_RETURN_IF_ERROR(reader.finish("reserve"));
    const model::ModelLimits& limits = parts_.model.limits();
    const auto rows = static_cast<std::int32_t>(std::min<std::int64_t>(
        limits.max_rows > 0 ? limits.max_rows : limits.max_tokens, limits.max_tokens));
    const batch::StepCapacity possible{.absorbed_tokens = limits.max_tokens,
                                       .decompressed_tokens = limits.max_tokens,
                                       .absorbed_rows = rows,
                                       .decompressed_rows = rows,
                                       .gather = limits.max_gather,
                                       .max_q_len = static_cast<std::int32_t>(limits.max_tokens),
                                       .max_kv_len = static_cast<std::int32_t>(limits.max_kv_len),
                                       .table_rows = rows,
                                       .block_stride = cache::pages_for(limits.max_kv_len),
                                       .total_splits = limits.max_splits};
    ESPALIER_RETURN_IF_ERROR(possible.check_holds(most));
    batches_ = SharedBatches(most);
    reserved_ = true;
    return {};
}

Expected<void> Follower::step(FlatReader& reader) {
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch batch, batches_.read(reader, bounds()));
    ESPALIER_RETURN_IF_ERROR(reader.finish("step"));
    if (batch.capacity.tokens() > parts_.model.limits().max_tokens)
        return fail(ErrorKind::invalid, "{} tokens, at most {}", batch.capacity.tokens(),
                    parts_.model.limits().max_tokens);
    const espalier::Stream stream = parts_.model.device().stream();
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view, batch_.upload(stream, batch));
    const model::Taps taps = parts_.taps ? parts_.taps->taps() : model::Taps{};
    ESPALIER_RETURN_IF_ERROR(parts_.model.forward(view, *parts_.storage, taps));
    last_tokens_ = view.cap_tokens;
    return {};
}

Expected<void> Follower::compact(FlatReader& reader) {
    ESPALIER_RETURN_IF_ERROR(read_moves(reader, parts_.storage->page_count(), moves_));
    ESPALIER_RETURN_IF_ERROR(reader.finish("compact"));
    return parts_.model.compact(moves_.source, moves_.destination, *parts_.storage);
}

Expected<void> Follower::log_taps(FlatReader& reader) {
    const auto first = reader.number<std::int64_t>();
    reader.array(rows_);
    ESPALIER_RETURN_IF_ERROR(reader.finish("draft_taps"));
    const std::int64_t room = parts_.drafts->limits().tokens;
    if (first < 0 || first > room || std::ssize(rows_) > room - first)
        return fail(ErrorKind::invalid, "{} taps from {} on, at most {}", rows_.size(), first,
                    room);
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("tap", rows_.data(), std::ssize(rows_), 0, last_tokens_));
    return parts_.drafts->log_taps(first, rows_);
}

Expected<void> Follower::kv_half(FlatReader& reader) {
    const auto tokens = reader.number<std::int64_t>();
    const auto waiting = reader.number<std::int64_t>();
    const std::span<const std::byte> bytes = reader.bytes_of(1);
    ESPALIER_RETURN_IF_ERROR(reader.finish("draft_kv"));
    draft::DraftPasses& drafts = *parts_.drafts;
    const std::int64_t most = std::max(drafts.limits().tokens, drafts.limits().nodes);
    if (tokens < 1 || tokens > most || waiting < 0 ||
        waiting > std::min(tokens, drafts.limits().tokens) ||
        bytes.size() != draft::TokenArrays::bytes(tokens))
        return fail(ErrorKind::invalid, "{} tokens of a KV half, {} waiting, {} bytes: at most {}",
                    tokens, waiting, bytes.size(), most);
    arrays_.resize((bytes.size() + sizeof(std::int64_t) - 1) / sizeof(std::int64_t));
    std::memcpy(arrays_.data(), bytes.data(), bytes.size());
    auto* const base = reinterpret_cast<std::byte*>(arrays_.data());
    ESPALIER_RETURN_IF_ERROR(check_arrays(draft::TokenArrays(base, tokens), tokens, waiting,
                                          bounds(), drafts.most().max_kv_len));
    ESPALIER_RETURN_IF_ERROR(drafts.upload_kv_half({base, bytes.size()}));
    return drafts.run_kv_half(tokens, waiting);
}

Expected<void> Follower::draft_roots(FlatReader& reader) {
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch batch, levels_.read(reader, bounds()));
    ESPALIER_RETURN_IF_ERROR(reader.finish("draft_roots"));
    ESPALIER_ASSIGN_OR_RETURN(roots_, parts_.drafts->upload_roots(batch));
    level_nodes_ = roots_->cap_tokens;
    ESPALIER_RETURN_IF_ERROR(parts_.drafts->run_roots(*roots_));
    return {};
}

Expected<void> Follower::draft_level(FlatReader& reader) {
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch batch, levels_.read_level(reader, bounds()));
    reader.array(rows_);
    ESPALIER_RETURN_IF_ERROR(reader.finish("draft_level"));
    if (!roots_) return fail(ErrorKind::invalid, "before its roots");
    draft::DraftPasses& drafts = *parts_.drafts;
    const batch::StepCapacity capacity = drafts.level_capacity(batch.capacity, *roots_);
    if (!(capacity == batch.capacity) || std::ssize(rows_) != capacity.tokens())
        return fail(ErrorKind::invalid, "{} parents of {} nodes in another layout", rows_.size(),
                    capacity.tokens());
    ESPALIER_RETURN_IF_ERROR(
        check_within_bounds("parent", rows_.data(), std::ssize(rows_), -1, level_nodes_));
    ESPALIER_RETURN_IF_ERROR(drafts.upload_level(batch.bytes, rows_));
    level_nodes_ = capacity.tokens();
    ESPALIER_RETURN_IF_ERROR(drafts.run_level(
        batch::view_batch(capacity, drafts.level_memory(), roots_->absorbed.block_table)));
    return {};
}

}  // namespace espalier::engine
