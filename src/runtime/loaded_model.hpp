// SPDX-License-Identifier: Apache-2.0
// A model with all it needs to run on this machine's CPU or GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/cpu_features.hpp"
#include "base/device.hpp"
#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "draft/eagle3_weights.hpp"
#include "mla/contract.hpp"
#include "model/deepseek.hpp"
#include "ops/ops.hpp"

namespace espalier::engine {
class RankChannel;
}

namespace espalier::runtime {

// Directory in which weights are kept packed (model/packed_cache.hpp), for checkpoints of
// `least_bytes` and more: smaller ones are packed in no time.
struct WeightCache {
    std::string directory = {};  // empty: none
    std::uint64_t least_bytes = 0;
};

// Told how many bytes of weights are in place, of how many. Called on the loading thread.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct LoadOptions {
    DeviceKind device = DeviceKind::cpu;
    int threads = 0;  // of the CPU; 0: OMP_NUM_THREADS if set, otherwise one per core
    // Format of the cache (model::ModelSettings). None: the activations' own type.
    std::optional<mla::KvFormat> kv_format = {};
    std::optional<WeightCode> rounding = {};  // see model::LoadOptions; not of a draft of its own
    std::optional<WeightCode> head_rounding = {};  // likewise
    // As which products with coded weights read their inputs (base/number_mode.hpp). None: auto.
    std::optional<NumberMode> activations = {};
    // Routed experts stay on disk, in the packed file beside the model or in the cache; of the CPU.
    bool mmap_experts = false;
    // The CPU uses it on one rank, where no packed file lies beside the model.
    WeightCache weight_cache = {};
    bool mtp = false;  // the model's multi-token-prediction layer too
    std::shared_ptr<const checkpoint::Checkpoint> draft = {};  // and this EAGLE3 draft
    // Channel of the first of several ranks to the others, which open the model as well; outlives
    // the model. Null: there is one rank, or another leads.
    engine::RankChannel* channel = nullptr;
    // Ranks of which this one is not the first; outlive the model.
    parallel::Ranks* ranks = nullptr;
    Progress progress = {};
    // Told in a sentence what takes time, or was damaged and made again.
    std::function<void(const std::string&)> say = {};
};

// All ranks that hold the model; null: this one has it whole.
parallel::Ranks* ranks_of(const LoadOptions& options);
// The part of it that is here.
model::Shard shard_of(const LoadOptions& options);

struct LoadedModel {
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
    std::unique_ptr<Device> device;
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<mla::Kernels> kernels;
    std::unique_ptr<model::DeepseekModel> model;
    std::shared_ptr<const draft::Eagle3Weights> eagle3;  // null: not asked for
    std::optional<mla::KvFormat> kv_format;              // where it was asked for
    std::optional<WeightCode> rounding;                  // likewise
    std::optional<WeightCode> head_rounding;             // likewise
    NumberMode activations = NumberMode::own;
    double load_seconds = 0;
    std::uint64_t packed_bytes = 0;  // of weights packed while loading; 0: a packed file was mapped
    std::shared_ptr<const model::ExpertReads> expert_reads;  // with LoadOptions::mmap_experts
    engine::RankChannel* channel = nullptr;                  // as in the options
    parallel::Ranks* ranks = nullptr;                        // that hold it, likewise
    std::shared_ptr<void> on_ranks;                          // the others' part of it

    // sizes: of the largest step that the model is to hold.
    static Expected<LoadedModel> load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                      const EngineSizes& sizes, const LoadOptions& options);

    // The options that the model's texts are a function of, nothing left to auto.
    LoadOptions identity_options() const;

  private:
    static Expected<LoadedModel> load_here(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                           const EngineSizes& sizes, const LoadOptions& options);
};

// The file of the weight cache that a start with these options maps or makes; empty: it has none.
std::string cached_weights_file(const checkpoint::Checkpoint& checkpoint,
                                const LoadOptions& options);

// A sentence for a log where the cache is fp8_tensor and the checkpoint has no scales for it.
std::optional<std::string> note_on_cache(const LoadedModel& loaded);

// By its name (mla::name_of); none for a name that is not one, as "own".
std::optional<mla::KvFormat> parse_kv_format(std::string_view name);

// "int8" or "int4"; none for another name, as "own".
std::optional<WeightCode> parse_rounding(std::string_view name);

// "int8"; none for another name, as "own" and "auto", which keeps the checkpoint's head
// (docs/quantization.md).
std::optional<WeightCode> parse_head_rounding(std::string_view name);

// "cpu" or "cuda".
std::optional<DeviceKind> parse_device(std::string_view name);

// The number of workers that `threads` of LoadOptions stands for here.
Expected<int> thread_count(int wanted);

}  // namespace espalier::runtime
