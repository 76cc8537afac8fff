// SPDX-License-Identifier: Apache-2.0
#include "runtime/sizes.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/cuda_memory.hpp"
#include "base/limits.hpp"
#include "cache/kv_storage.hpp"
#include "checkpoint/quantization.hpp"
#include "model/cost.hpp"
#include "model/kv_layout.hpp"
#include "model/mapped_experts.hpp"
#include "model/shard_bytes.hpp"
#include "runtime/memory_limit.hpp"
#include "runtime/rank_leader.hpp"
#include "runtime/working_memory.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::runtime {
namespace {

constexpr std::int64_t kDefaultRows = 32;
constexpr std::int64_t kMaxRows = 4096;
constexpr std::int64_t kMaxStepTokens = std::int64_t{1} << 20;
constexpr std::int64_t kMaxWaiting = std::int64_t{1} << 20;
constexpr std::int64_t kMaxPages = std::int64_t{1} << 30;
constexpr std::int64_t kStepGather = 512;
constexpr std::int64_t kHeadsOfPart = 16;
constexpr std::int64_t kStepParts = std::int64_t{1} << 17;

Expected<void> check_within(const char* field, std::int64_t value, std::int64_t least,
                            std::int64_t most) {
    if (value >= least && value <= most) return {};
    return fail_field(ErrorKind::invalid, field, "{}, not within {}…{}", value, least, most);
}

Expected<void> check_options(const SizeOptions& options, const SizeFacts& facts) {
    ESPALIER_RETURN_IF_ERROR(check_within("rows", options.rows, 0, kMaxRows));
    ESPALIER_RETURN_IF_ERROR(check_within("pages", options.pages, 0, kMaxPages));
    ESPALIER_RETURN_IF_ERROR(check_within("step_tokens", options.step_tokens, 1, kMaxStepTokens));
    ESPALIER_RETURN_IF_ERROR(check_within("max_waiting", options.max_waiting, 1, kMaxWaiting));
    if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1))
        return fail_field(ErrorKind::invalid, "gpu_memory_utilization",
                          "{}, not above 0 and at most 1", options.gpu_memory_utilization);
    if (options.max_model_len == 0) return {};
    return check_within("max_model_len", options.max_model_len, 2, facts.context);
}

std::string gigabytes(double bytes) { return fmt::format("{:.2f} GB", bytes / 1e9); }

// Bytes for weights, pages and all else that an engine takes.
double budget_of(const SizeOptions& options, const SizeFacts& facts) {
    const auto memory = static_cast<double>(facts.memory_bytes);
    // A tenth of the CPU's memory is left to the system and to activations.
    if (facts.gpu_bytes == 0) return 0.9 * memory;
    return memory - (1 - options.gpu_memory_utilization) * static_cast<double>(facts.gpu_bytes);
}

// Beside the null page. sizes: all but the pages.
Expected<std::int64_t> pages_for(const SizeOptions& options, const SizeFacts& facts,
                                 const EngineSizes& sizes) {
    const auto weights = static_cast<double>(facts.weight_bytes);
    const auto memory = static_cast<double>(facts.memory_bytes);
    const auto page = static_cast<double>(facts.page_bytes);
    const double working =
        facts.working_bytes ? static_cast<double>(facts.working_bytes(sizes)) : 0;
    std::string beside = fmt::format("the weights {}", gigabytes(weights));
    if (working > 0) beside += fmt::format(", activations and workspaces {}", gigabytes(working));
    if (weights > memory)
        return fail(ErrorKind::exhausted, "the model's weights take {}, and there are {} of memory",
                    gigabytes(weights), gigabytes(memory));
    if (options.pages > 0) {
        const double cache = static_cast<double>(options.pages + 1) * page;
        if (weights + working + cache > memory)
            return fail_field(ErrorKind::exhausted, "pages",
                              "{} take {}, {}, and there are {} of memory", options.pages,
                              gigabytes(cache), beside, gigabytes(memory));
        return options.pages;
    }
    const double room = (budget_of(options, facts) - weights - working) / page - 1;
    const std::int64_t longest = cache::pages_for(sizes.max_model_len);
    if (room < static_cast<double>(longest))
        return fail_field(ErrorKind::exhausted, "max_model_len",
                          "a sequence of {} tokens takes {} of cache, {}, and there are {} of "
                          "memory",
                          sizes.max_model_len,
                          gigabytes(static_cast<double>(longest * facts.page_bytes)), beside,
                          gigabytes(facts.gpu_bytes == 0 ? memory : budget_of(options, facts)));
    return std::min({static_cast<std::int64_t>(room), longest * sizes.max_rows, kMaxPages});
}

std::int64_t splits_for(const SizeFacts& facts, const EngineSizes& sizes) {
    if (facts.parts_of_split == 0) return 0;
    return std::max(2 * mla::row_splits(1, sizes.max_model_len),
                    std::min(kStepParts / facts.parts_of_split,
                             mla::row_splits(sizes.max_step_tokens, sizes.max_model_len)));
}

// Bytes in memory of weights with experts on disk: those that must be, and of what they leave three
// quarters for experts that the system keeps there; the cache gets no more than the rest.
std::uint64_t in_memory_of(const checkpoint::Checkpoint& checkpoint, std::uint64_t weights) {
    const std::uint64_t experts = std::min(weights, model::expert_bytes(checkpoint));
    const std::uint64_t fixed = weights - experts;
    const auto budget = static_cast<std::uint64_t>(0.9 * static_cast<double>(memory_bytes()));
    return fixed + (budget > fixed ? std::min(experts, (budget - fixed) / 4 * 3) : 0);
}

}  // namespace

Expected<mla::KvFormat> kv_format_of(const checkpoint::Checkpoint& checkpoint) {
    const checkpoint::ModelConfig& config = checkpoint.config();
    ESPALIER_ASSIGN_OR_RETURN(
        const checkpoint::StoredWeight projection,
        checkpoint::find_weight(checkpoint, "model.layers.0.self_attn.o_proj", config.hidden_size,
                                config.num_attention_heads * config.v_head_dim));
    return projection.format.input() == DType::f32 ? mla::KvFormat::f32 : mla::KvFormat::bf16;
}

std::int64_t memory_bytes() {
    const std::int64_t machine = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) *
                                 static_cast<std::int64_t>(sysconf(_SC_PAGE_SIZE));
    return std::min(machine, control_group_limit().value_or(machine));
}

namespace {

// Bytes in memory of this rank's part of weights that take `whole` on one. Rounding leaves a part's
// share of them about as it is.
Expected<std::uint64_t> bytes_here(const std::shared_ptr<const checkpoint::Checkpoint>& checkpoint,
                                   const LoadOptions& options, std::uint64_t whole) {
    const model::Shard shard = shard_of(options);
    ESPALIER_RETURN_IF_ERROR(model::check_shard(checkpoint->config(), shard));
    if (shard.whole()) return whole;
    ESPALIER_ASSIGN_OR_RETURN(const model::ShardBytes here, model::shard_bytes(checkpoint, shard));
    ESPALIER_ASSIGN_OR_RETURN(const model::ShardBytes all, model::shard_bytes(checkpoint, {}));
    return static_cast<std::uint64_t>(static_cast<double>(whole) *
                                      static_cast<double>(here.packed + here.embedding) /
                                      static_cast<double>(all.packed + all.embedding));
}

}  // namespace

Expected<SizeFacts> size_facts(const ModelFiles& files, const DrafterChoice& drafters,
                               const LoadOptions& options) {
    const checkpoint::ModelConfig& config = files.checkpoint->config();
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat own, kv_format_of(*files.checkpoint));
    const cache::KvLayout layout =
        layout_with(model::kv_layout(config, options.kv_format.value_or(own)), drafters, files);
    std::uint64_t weights =
        options.rounding
            ? model::rounded_bytes(config, *options.rounding, options.head_rounding.has_value())
            : files.checkpoint->loaded_bytes();
    ESPALIER_ASSIGN_OR_RETURN(weights, bytes_here(files.checkpoint, options, weights));
    if (drafters.eagle3) weights += files.draft->total_bytes();
    if (options.mmap_experts) weights = in_memory_of(*files.checkpoint, weights);
    SizeFacts facts{.context = config.max_position_embeddings,
                    .weight_bytes = static_cast<std::int64_t>(weights),
                    .page_bytes = layout.bytes_per_page(),
                    .memory_bytes = memory_bytes()};
    if (options.channel != nullptr) {
        LoadOptions asked = options;
        asked.mtp = drafters.mtp;
        ESPALIER_RETURN_IF_ERROR(without_loss([&] {
            return measure_ranks(*options.channel, rank_model(*files.checkpoint, asked), facts);
        }));
    }
    if (options.device == DeviceKind::cpu) return facts;
    ESPALIER_ASSIGN_OR_RETURN(const CudaMemory memory, cuda_memory());
    facts.memory_bytes = memory.free;
    facts.gpu_bytes = memory.total;
    facts.parts_of_split = (config.num_attention_heads + kHeadsOfPart - 1) / kHeadsOfPart;
    ESPALIER_ASSIGN_OR_RETURN(facts.working_bytes, gpu_working_bytes(files, drafters));
    return facts;
}

Expected<EngineSizes> derive_sizes(const SizeOptions& options, const SizeFacts& facts) {
    ESPALIER_RETURN_IF_ERROR(check_options(options, facts));
    const std::int64_t rows = options.rows > 0 ? options.rows : kDefaultRows;
    EngineSizes sizes;
    sizes.max_model_len = options.max_model_len > 0 ? options.max_model_len : facts.context;
    sizes.max_rows = static_cast<std::int32_t>(rows);
    sizes.max_step_tokens =
        std::max(options.step_tokens, rows + schedule::SchedulerOptions().prompt_quantum);
    sizes.max_step_gather = std::max(rows, std::min(kStepGather, rows * kMaxNodes));
    sizes.max_waiting = static_cast<std::int32_t>(std::max(options.max_waiting, rows));
    sizes.max_step_splits = splits_for(facts, sizes);
    auto room = pages_for(options, facts, sizes);
    if (!room && !facts.rank.empty()) room.error().message += fmt::format(" ({})", facts.rank);
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t pages, std::move(room));
    sizes.page_count = 1 + pages;
    return sizes;
}

}  // namespace espalier::runtime
