// SPDX-License-Identifier: Apache-2.0
#include "runtime/working_memory.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "draft/draft_model.hpp"
#include "engine/step_draws.hpp"
#include "model/deepseek.hpp"
#include "ops/cuda_backend.hpp"

namespace espalier::runtime {
namespace {

// On a GPU all products read bf16.
draft::NetworkShape mtp_shape(const checkpoint::ModelConfig& config) {
    return {.config = config,
            .act = DType::bf16,
            .taps = config.hidden_size,
            .state = config.hidden_size,
            .attention_input = config.hidden_size,
            .vocabulary = config.vocab_size};
}

draft::NetworkShape eagle3_shape(const checkpoint::Eagle3Config& config, std::int64_t taps) {
    return {.config = config.layer,
            .act = DType::bf16,
            .taps = taps,
            .state = config.layer.hidden_size,
            .attention_input = 2 * config.layer.hidden_size,
            .vocabulary = config.draft_vocab_size};
}

std::size_t draws_bytes(const EngineSizes& sizes, std::int64_t vocabulary) {
    schedule::SchedulerOptions options;
    static_cast<EngineSizes&>(options) = sizes;
    const ops::SamplingCapacity capacity = engine::StepDraws::capacity(options, vocabulary);
    return capacity.batch_bytes() +
           static_cast<std::size_t>(capacity.counts()) * sizeof(ops::TokenCount) +
           static_cast<std::size_t>(capacity.nodes) * sizeof(ops::Draw) +
           static_cast<std::size_t>(capacity.alternatives()) * sizeof(ops::TokenLogprob);
}

draft::PassLimits pass_limits(const EngineSizes& sizes) {
    return {.tokens = sizes.max_step_tokens,
            .nodes = sizes.max_step_gather,
            .rows = sizes.max_rows,
            .max_kv_len = sizes.max_model_len,
            .max_splits = draft_splits(sizes)};
}

struct Machine {
    std::unique_ptr<Device> device;
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<mla::Kernels> kernels;
};

}  // namespace

Expected<std::function<std::int64_t(const EngineSizes&)>> gpu_working_bytes(
    const ModelFiles& files, const DrafterChoice& drafters) {
    const auto machine = std::make_shared<Machine>();
    ESPALIER_ASSIGN_OR_RETURN(machine->device, make_cuda_device());
    ESPALIER_ASSIGN_OR_RETURN(machine->backend, ops::make_cuda_backend(*machine->device));
    ESPALIER_ASSIGN_OR_RETURN(machine->kernels, mla::make_cuda_kernels(*machine->device));
    const checkpoint::ModelConfig config = files.checkpoint->config();
    std::vector<draft::NetworkShape> drafts;
    std::int64_t tapped = 0;  // columns of hidden states that a step hands out
    if (drafters.mtp) {
        drafts.push_back(mtp_shape(config));
        tapped += config.hidden_size;
    }
    if (drafters.eagle3) {
        const checkpoint::Eagle3Config& draft = *files.draft->eagle3();
        ESPALIER_ASSIGN_OR_RETURN(const std::vector<std::int32_t> layers,
                                  draft.tap_layers(config.num_hidden_layers));
        const std::int64_t taps = std::ssize(layers) * config.hidden_size;
        drafts.push_back(eagle3_shape(draft, taps));
        tapped += taps;
    }
    return [machine, config, drafts, tapped](const EngineSizes& sizes) {
        std::size_t bytes =
            model::step_memory(config, DType::bf16, *machine->backend, *machine->kernels, 1,
                               {.max_tokens = sizes.max_step_tokens,
                                .max_gather = sizes.max_step_gather,
                                .max_kv_len = sizes.max_model_len,
                                .max_rows = sizes.max_rows,
                                .max_splits = sizes.max_step_splits})
                .total();
        bytes += static_cast<std::size_t>(sizes.max_step_tokens * tapped) * sizeof(float);
        for (const draft::NetworkShape& shape : drafts)
            bytes += draft::draft_memory_bytes(shape, *machine->backend, *machine->kernels, 1,
                                               pass_limits(sizes));
        bytes += (1 + drafts.size()) *
                 (draws_bytes(sizes, config.vocab_size) + batch::CaptureOptions{}.byte_limit);
        return static_cast<std::int64_t>(bytes);
    };
}

}  // namespace espalier::runtime
