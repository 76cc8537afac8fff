// SPDX-License-Identifier: Apache-2.0
#include "model/sequence.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace espalier::model {

Expected<Sequence> Sequence::create(const DeepseekModel& model, std::int64_t prompt_tokens,
                                    std::int64_t max_tokens) {
    if (max_tokens > model.limits().max_kv_len)
        return fail(ErrorKind::exhausted,
                    "{} tokens of prompt and answer, but the model's context is {}", max_tokens,
                    model.limits().max_kv_len);
    const std::int64_t pages = cache::pages_for(max_tokens);
    ESPALIER_ASSIGN_OR_RETURN(
        cache::KvStorage storage,
        cache::KvStorage::create(model.device(), model.kv_layout(), pages + 1));
    const std::int64_t step_tokens = model.limits().max_tokens;
    Sequence sequence(model.device(), std::move(storage),
                      {.absorbed_tokens = step_tokens,
                       .decompressed_tokens = step_tokens,
                       .absorbed_rows = 1,
                       .decompressed_rows = 1,
                       .gather = model.limits().max_gather,
                       .max_q_len = static_cast<std::int32_t>(step_tokens),
                       .max_kv_len = static_cast<std::int32_t>(max_tokens),
                       .table_rows = 1,
                       .block_stride = pages,
                       .total_splits = model.limits().max_splits});
    const auto& indexer = model.config().indexer;
    sequence.decompressed_below_ =
        batch::decompressed_below(prompt_tokens, cache::kPageTokens, indexer ? indexer->top_k : 0);
    sequence.max_chunk_ = sequence.max_absorbed_ = step_tokens;
    if (const std::int64_t splits = model.limits().max_splits; splits > 0)
        sequence.max_absorbed_ = std::clamp<std::int64_t>(splits / mla::row_splits(1, max_tokens),
                                                          1, sequence.max_chunk_);
    return sequence;
}

Sequence::Sequence(Device& device, cache::KvStorage storage, const batch::StepCapacity& most)
    : storage_(std::move(storage)),
      block_table_(static_cast<std::size_t>(most.block_stride)),
      builder_(most),
      batch_(device) {
    std::iota(block_table_.begin(), block_table_.end(), cache::kNullPage + 1);
}

Expected<Fed> Sequence::feed(DeepseekModel& model, std::span<const std::int32_t> tokens,
                             std::int64_t logits, std::int64_t max_chunk) {
    Fed fed;
    while (!tokens.empty() && !fed.nonfinite) {
        const std::span part = tokens.first(static_cast<std::size_t>(
            std::min(next_chunk(max_chunk > 0 ? max_chunk : max_chunk_), std::ssize(tokens))));
        tokens = tokens.subspan(part.size());
        if (tokens.empty() && logits > std::ssize(part))
            return fail(ErrorKind::exhausted, "{} logits of a batch of at most {} tokens", logits,
                        part.size());
        ESPALIER_ASSIGN_OR_RETURN(fed, step(model, part, tokens.empty() ? logits : 0));
    }
    return fed;
}

// Decompressed tokens up to the chunk, absorbed ones as far as their splits have room.
std::int64_t Sequence::next_chunk(std::int64_t most) const {
    const std::int64_t decompressed =
        std::clamp<std::int64_t>(decompressed_below_ - length_, 0, most);
    return std::min(most, decompressed + max_absorbed_);
}

Expected<batch::BatchView> Sequence::lay_out(DeepseekModel& model,
                                             std::span<const std::int32_t> tokens,
                                             std::int64_t logits) {
    builder_.clear();
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::int64_t split = std::clamp(decompressed_below_ - length_, std::int64_t{0}, count);
    const auto add = [&](std::int64_t first, std::int64_t q_len,
                         batch::Form form) -> Expected<void> {
        if (q_len == 0) return {};
        batch::RowSpec row;
        row.tokens =
            tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(q_len));
        row.block_table = block_table_;
        row.first_slot = static_cast<std::int32_t>(length_ + first);
        row.form = form;
        const std::int64_t behind = count - (first + q_len);
        row.gather = static_cast<std::int32_t>(std::clamp<std::int64_t>(logits - behind, 0, q_len));
        return builder_.add(row);
    };
    ESPALIER_RETURN_IF_ERROR(add(0, split, batch::Form::decompressed));
    ESPALIER_RETURN_IF_ERROR(add(split, count - split, batch::Form::absorbed));
    const batch::HostBatch batch = builder_.finish();
    ESPALIER_RETURN_IF_ERROR(batch.check_tokens(model.config().vocab_size));
    return batch_.upload(model.device().stream(), batch);
}

Expected<std::unique_ptr<RecordedWork>> Sequence::record(DeepseekModel& model,
                                                         std::span<const std::int32_t> tokens,
                                                         std::int64_t logits) {
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view, lay_out(model, tokens, logits));
    return model.device().record(model.device().stream(), [this, &model, view]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(model.forward(view, storage_));
        return {};
    });
}

Expected<Fed> Sequence::step(DeepseekModel& model, std::span<const std::int32_t> tokens,
                             std::int64_t logits) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view, lay_out(model, tokens, logits));
    ESPALIER_ASSIGN_OR_RETURN(const ForwardResult computed, model.forward(view, storage_));
    Fed fed;
    fed.logits = computed.logits;
    flags_.resize(tokens.size());
    ESPALIER_RETURN_IF_ERROR(model.device().download(model.device().stream(), flags_.data(),
                                                     computed.nonfinite, flags_.size()));
    fed.nonfinite = std::count(flags_.begin(), flags_.end(), 0) < count;
    if (!fed.nonfinite) length_ += count;
    return fed;
}

std::int64_t Sequence::slot_of(std::int64_t position) const {
    const auto page = static_cast<std::size_t>(position / cache::kPageTokens);
    return block_table_.at(page) * std::int64_t{cache::kPageTokens} + position % cache::kPageTokens;
}

}  // namespace espalier::model
