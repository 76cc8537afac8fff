// SPDX-License-Identifier: Apache-2.0
// Random-weight models in the real published format: config.json, generation_config.json,
// tokenizer.json and safetensors, single or sharded. The weights are a fixed function of (name,
// index, seed) that a few lines of numpy reproduce bit for bit; tests and parity goldens rest on
// that, so the function never changes:
//
//   x = mix(fnv1a64(name) + (seed + 1)·0x9E3779B97F4A7C15 + i·0xD1B54A32D192ED03)   mod 2^64, mix
//   of splitmix64 u = (x >> 40)·2^-24, in [0, 1);  all below in double, then rounded to f32, then
//   to the stored dtype matrices [n, k]           (2u − 1)·sqrt(3/k)      variance 1/k embeddings
//   (2u − 1) norms                     1 + 0.25·(2u − 1) e_score_correction_bias   0.1·u biases of
//   norms   0.25·(2u − 1) FP8 codes
//   (2u − 1)·448 weight_scale_inv          sqrt(3/k)/448·(0.5 + u)  k is the width of the matrix it
//   scales; of quantized ones sqrt(3/k)/L·(0.5 + u), L the largest code (8, 128; 6 of NVFP4's
//   weight_scale_2 and input_scale); NVFP4's weight_scale 0.5 + u. Their codes are the topmost bits
//   of x, as many as the stored element has
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/tensor_list.hpp"

namespace espalier::checkpoint {

struct SyntheticModel {
    ModelConfig config;
    DType dtype = DType::bf16;  // e4m3: FP8 projections in 128×128 blocks, all else bf16
    std::uint64_t seed = 0;
    std::uint64_t shard_limit_bytes = 0;  // of tensor bytes per file; 0: one file
    bool repeat_mtp_embeddings = false;   // see TensorListOptions
    // Directory whose tokenizer.json and tokenizer_config.json the model gets; empty: synthetic
    // ones for its vocabulary.
    std::filesystem::path tokenizer = {};
};

// An EAGLE3 draft; its d2t spreads its tokens evenly over the target's.
struct SyntheticDraft {
    Eagle3Config config;
    Eagle3ListOptions tensors;  // dtype and what is there
    std::uint64_t seed = 0;
};

// Names for --preset and their models.
std::vector<std::string_view> synthetic_preset_names();
Expected<SyntheticModel> synthetic_preset(std::string_view name);
// Names for --dtype, how a model's projections are stored, and what they make of a model.
std::vector<std::string_view> synthetic_dtype_names();
Expected<void> store_as(std::string_view dtype, SyntheticModel& model);
// A small EAGLE3 draft for a model: half of its vocabulary, three taps, a layer like its dense
// ones.
SyntheticDraft synthetic_draft_for(const SyntheticModel& model);

// Called with bytes done and bytes in all.
using SyntheticProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Writes the model into `directory`, which is made if need be and must be empty. config.json comes
// last, so a directory whose writing was cut short is not taken for a model. Holds a few MiB of the
// tensors at a time.
Expected<void> write_synthetic(const SyntheticModel& model, const std::filesystem::path& directory,
                               ThreadPool& pool, const SyntheticProgress& progress = {});

// The same on the current GPU, and nothing but its small files in `directory`: a checkpoint over
// memory that the GPU has filled with the bits of write_synthetic, and that the host can read.
Expected<Checkpoint> synthetic_on_gpu(const SyntheticModel& model,
                                      const std::filesystem::path& directory);

// The draft in the same way: config.json and model.safetensors.
Expected<void> write_synthetic_draft(const SyntheticDraft& draft,
                                     const std::filesystem::path& directory, ThreadPool& pool,
                                     const SyntheticProgress& progress = {});

// Elements [first, first + count) of a tensor, in its stored dtype, into `out`
// (count·bytes_of(spec.type) bytes).
void synthetic_values(const TensorSpec& spec, std::uint64_t seed, std::uint64_t first,
                      std::uint64_t count, std::byte* out);

// config.json such that parse_eagle3_config(…) gives `config` back.
std::string eagle3_config_json_of(const Eagle3Config& config, DType dtype);
// config.json and generation_config.json such that parse_model_config(…) gives `config` back.
std::string config_json_of(const ModelConfig& config, DType dtype);
std::string generation_config_json_of(const ModelConfig& config,
                                      const GenerationDefaults& defaults = {});
// A config.json that was accepted, with this description of its weights in place of its own.
std::string quantized_config_json(std::string_view config_text, const Quantization& how,
                                  const std::optional<Quantization>& head = {});

// A byte-level BPE in the form of DeepSeek's tokenizer.json: special tokens 0–4, the 256 bytes,
// then merges of lowercase letters up to vocab_size (at least 261), so that every id below 457,913
// decodes to something.
Expected<std::string> synthetic_tokenizer_json(std::int64_t vocab_size);
std::string synthetic_tokenizer_config_json();

}  // namespace espalier::checkpoint
