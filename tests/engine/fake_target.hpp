// SPDX-License-Identifier: Apache-2.0
// A target without a model: the token drawn after a prefix is a hash of the prefix. The prefix is
// read back through everything the engine lays out: slots, block tables, ancestor words, moves. So
// a step that gets any of these wrong draws other tokens, and a test needs no weights to see it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/cpu_device.hpp"
#include "batch/device_batch.hpp"
#include "engine/target.hpp"
#include "ops/sampling_memory.hpp"

namespace espalier::engine {

class FakeTarget final : public Target {
  public:
    enum class Fault { none, refuse_run, refuse_wait, refuse_compact, ignore_masks };

    FakeTarget(std::int64_t vocabulary, const model::ModelLimits& limits, std::int64_t page_count);

    // Token that it draws after these; `banned` are never drawn, nor what a mask of words lacks
    // (null: none); -1: nothing is left.
    std::int32_t next_token(std::span<const std::int32_t> prefix,
                            std::span<const std::int32_t> banned = {},
                            const std::uint32_t* allowed = nullptr) const;

    // Draws that the last step asked for, in the order of the gathered tokens. The prefix is
    // what attention sees.
    struct AskedNode {
        std::vector<std::int32_t> prefix;
        std::vector<std::int32_t> banned;
        std::vector<std::uint32_t> allowed;  // empty: everything
        std::int32_t wanted = ops::kDraw;
        bool of_tree = false;  // its row has a mask of a tree
    };
    const std::vector<AskedNode>& asked() const { return asked_; }

    const TargetInfo& info() const override { return info_; }
    Expected<void> reserve(const StepRoom& room) override;
    Expected<void> run(const batch::HostBatch& batch,
                       const ops::SamplingBatchBuilder* draws) override;
    Expected<StepResult> wait() override;
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination) override;

    bool is_recorded(const batch::StepCapacity&) const override { return recorded; }
    void be_asynchronous() { info_.asynchronous = true; }

    Fault fault = Fault::none;
    bool recorded = true;
    // Called at the beginning of run() and of wait().
    std::function<void()> at_run, at_wait;
    // Times that it states for every step.
    DeviceTimes times;
    // Tokens whose numbers are not finite.
    std::int32_t poison = -1;

  private:
    std::vector<std::int32_t> prefix_of(const mla::RaggedRows& rows, std::int32_t row,
                                        std::int64_t token) const;
    void read_prefixes(const mla::RaggedRows& rows, std::int64_t first, std::int64_t end);
    Expected<void> pass(const batch::HostBatch& batch);
    Expected<void> draw(const ops::SamplingBatchBuilder& draws);

    TargetInfo info_;
    CpuDevice device_{1};
    batch::DeviceBatch batch_{device_};
    std::optional<ops::SamplingMemory> sampling_;
    std::vector<std::int32_t> cached_;                 // by slot of the pool: the token it holds
    std::vector<std::vector<std::int32_t>> prefixes_;  // by token of the batch
    std::vector<bool> of_tree_;                        // likewise
    std::vector<std::int32_t> gathered_;
    std::vector<AskedNode> asked_;
    std::vector<ops::Draw> draws_;
    std::vector<ops::TokenLogprob> alternatives_;
    std::vector<std::uint8_t> nonfinite_;
};

}  // namespace espalier::engine
