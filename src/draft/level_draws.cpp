// SPDX-License-Identifier: Apache-2.0
#include "draft/level_draws.hpp"

#include <algorithm>
#include <utility>

#include "accept/constraint.hpp"
#include "accept/output_rules.hpp"
#include "accept/request_progress.hpp"
#include "accept/sampling_parameters.hpp"
#include "ops/draw.hpp"

namespace espalier::draft {
namespace {

using ops::DraftChild;

constexpr std::size_t kPathBytes = std::size_t{kMaxDrafts} * sizeof(ops::TokenCount);

}  // namespace

Expected<LevelDraws> LevelDraws::create(Device& device, const PassLimits& limits,
                                        std::int64_t vocabulary) {
    const ops::SamplingCapacity capacity{
        .nodes = limits.nodes,
        .requests = limits.rows,
        .vocabulary = vocabulary,
        .max_context = limits.max_kv_len,
        .biases = accept::kMaxLogitBiases,
        .banned = 2 * accept::kMaxStopTokens + accept::kMaxStopStrings,
        .masks = limits.rows};  // of roots
    ESPALIER_ASSIGN_OR_RETURN(auto builder, ops::SamplingBatchBuilder::create(capacity));
    ESPALIER_ASSIGN_OR_RETURN(auto memory, ops::SamplingMemory::create(device, capacity));
    const auto places = static_cast<std::size_t>(2 * limits.nodes * kMaxDrafts);
    ESPALIER_ASSIGN_OR_RETURN(Buffer children, device.allocate(places * sizeof(DraftChild)));
    ops::SamplingBatch level;
    ESPALIER_ASSIGN_OR_RETURN(Buffer arrays,
                              device.allocate(ops::place_arrays(level, nullptr, limits.nodes)));
    return LevelDraws(std::move(builder), std::move(memory), std::move(children),
                      std::move(arrays));
}

LevelDraws::LevelDraws(ops::SamplingBatchBuilder builder, ops::SamplingMemory memory,
                       Buffer children, Buffer arrays)
    : builder_(std::move(builder)),
      memory_(std::move(memory)),
      children_(std::move(children)),
      arrays_(std::move(arrays)) {}

void LevelDraws::begin(std::int64_t nodes) {
    builder_.begin(nodes);
    any_coupled_ = any_plain_ = false;
}

bool LevelDraws::coupled(const speculate::DraftCall& call) {
    return call.coupled && call.sampling != nullptr &&
           call.sampling->draw().temperature >= ops::kGreedyBelow;
}

std::int32_t LevelDraws::banned_levels(const speculate::DraftCall& call) {
    std::int32_t levels = 0;
    if (call.progress == nullptr) return levels;
    while (levels < kMaxNodes && !call.progress->banned_at(levels).empty()) ++levels;
    return levels;
}

void LevelDraws::add(const speculate::DraftCall& call, std::int64_t serial) {
    (coupled(call) ? any_coupled_ : any_plain_) = true;
    ops::NodeRequest node{.position = static_cast<std::int32_t>(call.root_position + 1),
                          .choice = call.choice,
                          .logprob = false};
    node.parameters.temperature = 0;
    if (call.sampling != nullptr) {
        node.parameters = call.sampling->draw();
        node.biases = builder_.add_biases(call.sampling->logit_bias());
    }
    if (call.progress != nullptr) {
        node.banned = builder_.add_banned(call.progress->banned_at(0));
        if (call.sampling != nullptr && call.sampling->counts_tokens())
            node.committed = builder_.add_counts(serial, call.progress->committed_counts());
    }
    if (call.constraint != nullptr)
        if (const auto mask = call.constraint->root_mask(); !mask.empty())
            std::ranges::copy(mask, builder_.add_mask(node.allowed).begin());
    builder_.add(node);
}

Expected<ops::SamplingBatch> LevelDraws::upload(Stream stream) {
    builder_.finish();
    return memory_.upload(stream, builder_);
}

// All nodes of the batch for each kind; those of the other kind are not looked at afterwards.
void LevelDraws::find(DraftModel& model, const Matrix& logits, const ops::SamplingBatch& batch,
                      const Search& search) {
    for (const bool coupled : {false, true})
        if (coupled ? search.coupled : search.plain)
            model.backend().draft_children(
                model.context(), logits, batch, model.network().vocabulary(),
                {.width = search.width, .coupled = coupled}, on_device(coupled));
}

DraftChild* LevelDraws::on_device(bool coupled) {
    return children_.as<DraftChild>() + (coupled ? builder_.capacity().nodes * kMaxDrafts : 0);
}

ops::FoundChildren LevelDraws::found(const Search& search) {
    return {.plain = search.plain ? on_device(false) : nullptr,
            .coupled = search.coupled ? on_device(true) : nullptr,
            .width = search.width};
}

// Counts along paths lie at the end of the lists: roots have none.
ops::FrontierDraws LevelDraws::frontier(std::int64_t nodes) {
    const ops::SamplingCapacity& capacity = builder_.capacity();
    const std::size_t paths = static_cast<std::size_t>(capacity.nodes) * kPathBytes;
    return {.batch = memory_.view_beside(arrays_.data(), nodes, capacity.vocabulary),
            .changed = static_cast<std::uint32_t>((capacity.batch_bytes() - paths) /
                                                  sizeof(std::uint32_t))};
}

Expected<void> LevelDraws::poison(Device& device, Stream stream) {
    return device.fill(stream, arrays_.data(), std::byte{0xFF}, arrays_.bytes());
}

}  // namespace espalier::draft
