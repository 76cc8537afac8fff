// SPDX-License-Identifier: Apache-2.0
#include "runtime/loaded_model.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "base/cpu_device.hpp"
#include "base/for_what.hpp"
#include "base/mapping_guard.hpp"
#include "model/packed_cache.hpp"
#include "model/packed_weights.hpp"
#include "ops/cuda_backend.hpp"
#include "runtime/identity.hpp"
#include "runtime/rank_leader.hpp"
#include "runtime/sizes.hpp"

namespace espalier::runtime {
namespace {

constexpr int kMaxThreads = 1024;

// Draft KV lies in the target's pages, in its format.
Expected<std::shared_ptr<const draft::Eagle3Weights>> load_eagle3(
    std::shared_ptr<const checkpoint::Checkpoint> draft, const model::Weights& target,
    const LoadedModel& loaded, const Progress& progress) {
    ESPALIER_ASSIGN_OR_RETURN(
        draft::Eagle3Weights weights,
        draft::Eagle3Weights::load(std::move(draft), loaded.checkpoint->config(), *loaded.device,
                                   *loaded.backend, progress));
    const WeightFormat& format = weights.layer.attention.o.view().format;
    if (format.input() != target.format.input())
        return fail_field(ErrorKind::unsupported, "draft",
                          "its weights are {}, the model's {}: BF16, F8_E4M3 and quantized ones do "
                          "not mix with F32 and F16 ones",
                          name_of(format.code), name_of(target.format.code));
    return std::make_shared<const draft::Eagle3Weights>(std::move(weights));
}

bool uses_weight_cache(const checkpoint::Checkpoint& checkpoint, const LoadOptions& options) {
    return options.device == DeviceKind::cpu && !options.rounding &&
           !options.weight_cache.directory.empty() && shard_of(options).whole() &&
           checkpoint.total_bytes() >= options.weight_cache.least_bytes;
}

// Weights in the cache; null: they could not be kept there, which is said.
std::shared_ptr<model::PackedWeights> cached_weights(const LoadedModel& loaded,
                                                     const LoadOptions& options) {
    auto packed = model::PackedCache(options.weight_cache.directory)
                      .take(loaded.checkpoint, static_cast<CpuDevice&>(*loaded.device),
                            {.mmap_experts = options.mmap_experts,
                             .progress = options.progress,
                             .say = options.say});
    if (packed) return *packed;
    if (options.say)
        options.say(packed.error().message + "; the weights are packed in memory alone");
    return nullptr;
}

// Weights that lie packed beside the model or in the cache; null: they are packed at load.
Expected<std::shared_ptr<model::PackedWeights>> packed_weights(const LoadedModel& loaded,
                                                               const LoadOptions& options) {
    const checkpoint::Checkpoint& checkpoint = *loaded.checkpoint;
    std::shared_ptr<model::PackedWeights> packed;
    if (options.device == DeviceKind::cpu && !options.rounding) {
        ESPALIER_ASSIGN_OR_RETURN(packed, model::PackedWeights::open(checkpoint));
    }
    if (packed == nullptr && uses_weight_cache(checkpoint, options))
        packed = cached_weights(loaded, options);
    if (!options.mmap_experts || packed != nullptr) return packed;
    if (options.device != DeviceKind::cpu)
        return fail_field(ErrorKind::unsupported, "mmap_experts", "the model runs on a GPU");
    if (options.rounding)
        return fail_field(ErrorKind::unsupported, "mmap_experts",
                          "weights that are rounded at load lie in no file; write them with: "
                          "espalier quantize --packed");
    return fail_field(ErrorKind::not_found, "mmap_experts",
                      "{} is not there; write it with: espalier pack",
                      model::packed_weights_path(checkpoint).string());
}

Expected<void> take_cpu(const LoadOptions& options, LoadedModel& loaded) {
    ESPALIER_ASSIGN_OR_RETURN(const CpuVariant variant, chosen_cpu_variant());
    ESPALIER_ASSIGN_OR_RETURN(const int workers, thread_count(options.threads));
    loaded.device = std::make_unique<CpuDevice>(workers);
    loaded.backend = ops::make_cpu_backend(variant);
    loaded.kernels = mla::make_cpu_kernels(variant);
    return {};
}

Expected<void> take_gpu(const LoadOptions& options, LoadedModel& loaded) {
    if (options.threads != 0)
        return fail_field(ErrorKind::invalid, "threads", "{}, but the model runs on a GPU",
                          options.threads);
    ESPALIER_ASSIGN_OR_RETURN(loaded.device, make_cuda_device());
    ESPALIER_ASSIGN_OR_RETURN(loaded.backend, ops::make_cuda_backend(*loaded.device));
    ESPALIER_ASSIGN_OR_RETURN(loaded.kernels, mla::make_cuda_kernels(*loaded.device));
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat own, kv_format_of(*loaded.checkpoint));
    if (own == mla::KvFormat::f32)
        return fail(ErrorKind::unsupported,
                    "{} has F32 or F16 weights, whose activations are f32: attention on a GPU "
                    "takes bf16 (all other weights)",
                    loaded.checkpoint->directory().string());
    return {};
}

}  // namespace

std::optional<DeviceKind> parse_device(std::string_view name) {
    if (name == "cpu") return DeviceKind::cpu;
    if (name == "cuda") return DeviceKind::cuda;
    return std::nullopt;
}

std::optional<mla::KvFormat> parse_kv_format(std::string_view name) {
    using mla::KvFormat;
    for (const KvFormat format :
         {KvFormat::f32, KvFormat::bf16, KvFormat::fp16, KvFormat::fp8_tensor, KvFormat::fp8_token})
        if (name == mla::name_of(format)) return format;
    return std::nullopt;
}

std::optional<WeightCode> parse_rounding(std::string_view name) {
    for (const WeightCode code : {WeightCode::int8, WeightCode::int4})
        if (name == name_of(code)) return code;
    return std::nullopt;
}

std::optional<WeightCode> parse_head_rounding(std::string_view name) {
    if (name == name_of(WeightCode::int8)) return WeightCode::int8;
    return std::nullopt;
}

LoadOptions LoadedModel::identity_options() const {
    return {.device = device->kind(),
            .kv_format = kv_format,
            .rounding = rounding,
            .head_rounding = head_rounding,
            .activations = activations};
}

std::string cached_weights_file(const checkpoint::Checkpoint& checkpoint,
                                const LoadOptions& options) {
    std::error_code error;
    const bool beside = std::filesystem::exists(model::packed_weights_path(checkpoint), error);
    if (beside || !uses_weight_cache(checkpoint, options)) return {};
    return model::PackedCache(options.weight_cache.directory).file_of(checkpoint).string();
}

std::optional<std::string> note_on_cache(const LoadedModel& loaded) {
    if (loaded.kv_format != mla::KvFormat::fp8_tensor) return std::nullopt;
    for (const model::LayerWeights& layer : loaded.model->weights().layers)
        if (layer.attention.kv_scale != 1.0f) return std::nullopt;
    return "the fp8_tensor cache has scale 1, for want of k_scale tensors in the checkpoint: keys "
           "beyond ±448 saturate; fp8_token has a scale for each token";
}

Expected<int> thread_count(int wanted) {
    if (wanted < 0 || wanted > kMaxThreads)
        return fail_field(ErrorKind::invalid, "threads", "{}, not within 1…{} (or 0: all cores)",
                          wanted, kMaxThreads);
    if (wanted > 0) return wanted;
    if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr && *text != '\0') {
        int value = 0;
        const std::string_view view(text);
        const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
        if (error != std::errc() || end != view.data() + view.size() || value < 1 ||
            value > kMaxThreads)
            return fail(ErrorKind::invalid, "OMP_NUM_THREADS={}: not a number between 1 and {}",
                        view, kMaxThreads);
        return value;
    }
    return static_cast<int>(
        std::clamp(std::thread::hardware_concurrency(), 1u, static_cast<unsigned>(kMaxThreads)));
}

parallel::Ranks* ranks_of(const LoadOptions& options) {
    return options.channel != nullptr ? &options.channel->ranks() : options.ranks;
}

model::Shard shard_of(const LoadOptions& options) {
    const parallel::Ranks* ranks = ranks_of(options);
    if (ranks == nullptr) return {};
    return {.rank = ranks->rank(), .count = ranks->count()};
}

// The other ranks read their weights at the same time.
Expected<LoadedModel> LoadedModel::load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                        const EngineSizes& sizes, const LoadOptions& options) {
    if (options.channel == nullptr) return load_here(std::move(checkpoint), sizes, options);
    if (options.device != DeviceKind::cpu)
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{}, but the model runs on a GPU: several ranks are for the CPU",
                          options.channel->ranks().count());
    return without_loss([&]() -> Expected<LoadedModel> {
        const engine::RankChannel::Unhurried unhurried(*options.channel);
        RankModel model = rank_model(*checkpoint, options);
        model.sizes = sizes;
        open_on_ranks(*options.channel, model);
        auto on_ranks = std::make_shared<OpenOnRanks>(*options.channel);
        Expected<LoadedModel> loaded = load_here(std::move(checkpoint), sizes, options);
        Expected<RankFacts> facts;
        if (loaded) facts = rank_facts(*loaded, sizes);
        const Expected<void> opened = check_opened(*options.channel, facts ? *facts : RankFacts{});
        if (!loaded) return loaded;
        if (!facts) return tl::unexpected<Error>(facts.error());
        if (!opened) return tl::unexpected<Error>(opened.error());
        loaded->channel = options.channel;
        loaded->on_ranks = std::move(on_ranks);
        return loaded;
    });
}

Expected<LoadedModel> LoadedModel::load_here(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint, const EngineSizes& sizes,
    const LoadOptions& options) {
    LoadedModel loaded;
    loaded.checkpoint = std::move(checkpoint);
    loaded.kv_format = options.kv_format;
    loaded.rounding = options.rounding;
    loaded.head_rounding = options.head_rounding;
    ESPALIER_ASSIGN_OR_RETURN(loaded.activations, number_mode_of(*loaded.checkpoint, options));
    loaded.ranks = ranks_of(options);
    ESPALIER_RETURN_IF_ERROR(options.device == DeviceKind::cuda ? take_gpu(options, loaded)
                                                                : take_cpu(options, loaded));
    const checkpoint::ModelConfig& config = loaded.checkpoint->config();
    ESPALIER_RETURN_IF_ERROR(
        for_what(loaded.kernels->check_dims(config.key_dims(), config.head_dims()),
                 loaded.checkpoint->directory().string()));
    if (config.query_scaling_beta != 0.0 && !loaded.backend->scales_queries())
        return fail(ErrorKind::unsupported, "{}: queries scaled by their position on {}",
                    loaded.checkpoint->directory().string(), loaded.backend->name());
    if (config.indexer)
        ESPALIER_RETURN_IF_ERROR(
            for_what(loaded.kernels->check_indexer(), loaded.checkpoint->directory().string()));

    const auto start = std::chrono::steady_clock::now();
    ESPALIER_ASSIGN_OR_RETURN(const auto packed, packed_weights(loaded, options));
    ESPALIER_ASSIGN_OR_RETURN(
        model::Weights weights,
        for_what(model::Weights::load(loaded.checkpoint, *loaded.device, *loaded.backend,
                                      {.mtp = options.mtp,
                                       .rounding = options.rounding,
                                       .head_rounding = options.head_rounding,
                                       .activations = loaded.activations,
                                       .shelf = packed,
                                       .mmap_experts = options.mmap_experts,
                                       .shard = shard_of(options),
                                       .progress = options.progress}),
                 "the weights"));
    loaded.packed_bytes = weights.packed_bytes;
    loaded.expert_reads = weights.expert_reads;
    if (options.draft != nullptr) {
        ESPALIER_ASSIGN_OR_RETURN(loaded.eagle3,
                                  load_eagle3(options.draft, weights, loaded, options.progress));
    }
    ESPALIER_RETURN_IF_ERROR(check_mapped_files());
    loaded.load_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ESPALIER_ASSIGN_OR_RETURN(
        model::DeepseekModel model,
        model::DeepseekModel::create(loaded.checkpoint->config(), std::move(weights),
                                     *loaded.backend, *loaded.kernels, *loaded.device,
                                     {.limits = {.max_tokens = sizes.max_step_tokens,
                                                 .max_gather = sizes.max_step_gather,
                                                 .max_kv_len = sizes.max_model_len,
                                                 .max_rows = sizes.max_rows,
                                                 .max_splits = sizes.max_step_splits},
                                      .kv_format = options.kv_format,
                                      .ranks = loaded.ranks}));
    loaded.model = std::make_unique<model::DeepseekModel>(std::move(model));
    return loaded;
}

}  // namespace espalier::runtime
