// SPDX-License-Identifier: Apache-2.0
#include "draft/level_draws.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "accept/constraint.hpp"
#include "accept/output_rules.hpp"
#include "accept/request_progress.hpp"
#include "accept/sampling_parameters.hpp"
#include "base/check.hpp"
#include "ops/draw.hpp"

namespace espalier::draft {
namespace {

using ops::DraftChild;

bool draws_with_noise(const speculate::DraftCall& call) {
    return call.coupled && call.sampling != nullptr &&
           call.sampling->draw().temperature >= ops::kGreedyBelow;
}

// The noise is known, so what is left to chance is how far the draft's logits are from the
// target's: the children's shares by exp(s), which have the noise in them, say more than their
// probabilities.
void share_by_noise(std::span<const DraftChild> found, std::span<Growth::Child> children) {
    double total = 0;
    for (const DraftChild& child : found) total += std::exp(child.score - found.front().score);
    for (std::size_t i = 0; i < found.size(); ++i)
        children[i] = {found[i].token,
                       static_cast<float>(std::exp(found[i].score - found.front().score) / total)};
}

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
    return LevelDraws(std::move(builder), std::move(memory), std::move(children));
}

LevelDraws::LevelDraws(ops::SamplingBatchBuilder builder, ops::SamplingMemory memory,
                       Buffer children)
    : builder_(std::move(builder)),
      memory_(std::move(memory)),
      device_children_(std::move(children)) {
    coupled_.reserve(static_cast<std::size_t>(builder_.capacity().nodes));
}

void LevelDraws::begin(std::int64_t nodes) {
    builder_.begin(nodes);
    coupled_.clear();
    any_coupled_ = any_plain_ = false;
}

void LevelDraws::add(const speculate::DraftCall& call, const Growth& growth, std::int64_t serial) {
    const bool coupled = draws_with_noise(call);
    (coupled ? any_coupled_ : any_plain_) = true;
    const accept::RequestProgress* progress = call.progress;
    ops::NodeRequest common{.choice = call.choice, .logprob = false};
    common.parameters.temperature = 0;
    bool counts = false;
    if (call.sampling != nullptr) {
        common.parameters = call.sampling->draw();
        common.biases = builder_.add_biases(call.sampling->logit_bias());
        counts = call.sampling->counts_tokens() && progress != nullptr;
    }
    if (progress != nullptr) common.banned = builder_.add_banned(progress->banned_at(0));
    if (counts) common.committed = builder_.add_counts(serial, progress->committed_counts());
    std::array<TokenId, kMaxDrafts> room;
    for (const std::int32_t index : growth.frontier()) {
        const std::int32_t depth = growth.node(index).depth;
        ops::NodeRequest node = common;
        node.position = static_cast<std::int32_t>(call.root_position + 1 + depth);
        if (progress != nullptr && progress->banned_at(depth).empty()) node.banned = {};
        accept::NodeCounts at_node;
        if (counts) at_node = progress->counts_at(growth.path(index, room));
        node.changed = at_node.changed();
        if (depth == 0 && call.constraint != nullptr)
            if (const auto mask = call.constraint->root_mask(); !mask.empty())
                std::ranges::copy(mask, builder_.add_mask(node.allowed).begin());
        builder_.add(node);
        coupled_.push_back(coupled);
    }
}

Expected<ops::SamplingBatch> LevelDraws::upload(Stream stream) {
    builder_.finish();
    return memory_.upload(stream, builder_);
}

DraftChild* LevelDraws::on_device(bool coupled) {
    return device_children_.as<DraftChild>() +
           (coupled ? builder_.capacity().nodes * kMaxDrafts : 0);
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

Expected<void> LevelDraws::download(OpContext& context, const Search& search, std::int32_t width) {
    width_ = width;
    children_.resize(coupled_.size() * static_cast<std::size_t>(width));
    counts_.assign(coupled_.size(), 0);
    std::array<Transfer, 2> transfers{};
    for (const bool coupled : {false, true}) {
        std::vector<DraftChild>& found = found_[coupled];
        const bool any = coupled ? search.coupled : search.plain;
        found.resize(any ? coupled_.size() * static_cast<std::size_t>(search.width) : 0);
        transfers[coupled] = {found.data(), on_device(coupled), found.size() * sizeof(DraftChild)};
    }
    ESPALIER_RETURN_IF_ERROR(context.device.download_all(context.stream, transfers));
    for (const bool coupled : {false, true})
        if (!found_[coupled].empty()) take(coupled, search.width);
    return {};
}

// stride: children that were looked for.
void LevelDraws::take(bool coupled, std::int32_t stride) {
    const auto width = static_cast<std::size_t>(width_);
    for (std::size_t row = 0; row < coupled_.size(); ++row) {
        if (coupled_[row] != coupled) continue;
        std::span<const DraftChild> found =
            std::span(found_[coupled]).subspan(row * static_cast<std::size_t>(stride), width);
        const auto none = std::find_if(found.begin(), found.end(),
                                       [](const DraftChild& child) { return child.token < 0; });
        found = found.first(static_cast<std::size_t>(none - found.begin()));
        counts_[row] = static_cast<std::int32_t>(found.size());
        const std::span<Growth::Child> children =
            std::span(children_).subspan(row * width, found.size());
        if (coupled) {
            share_by_noise(found, children);
        } else {
            for (std::size_t i = 0; i < found.size(); ++i)
                children[i] = {found[i].token, found[i].probability};
        }
    }
}

std::span<const Growth::Child> LevelDraws::children(std::int64_t row) const {
    const auto index = static_cast<std::size_t>(row);
    return std::span(children_).subspan(index * static_cast<std::size_t>(width_),
                                        static_cast<std::size_t>(counts_[index]));
}

}  // namespace espalier::draft
