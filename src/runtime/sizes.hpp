// SPDX-License-Identifier: Apache-2.0
// How large an engine becomes: from what was asked for, what the model can do and what the machine
// has, to the one list of sizes that everything is made with. The rules, one per size:
//
//   max_model_len    as asked, and at most the model's context; not asked: the context
//   max_rows         as asked; not asked: 32
//   max_step_tokens  as asked (2048), but one token for every row and one prompt quantum at least
//   max_step_gather  whole trees of 64 nodes for 8 rows, a share of these 512 for more; every row's
//                    root at least. 512 rows of a vocabulary of 129,280 are 265 MB.
//   page_count       the null page and as many as asked; not asked: the longest sequence for every
//                    row, or what nine tenths of the memory hold beside the weights; on a GPU what
//                    its utilization leaves of it beside weights, activations, workspaces, graphs
//   max_step_splits  on a GPU 2¹⁷ partial results of 16 heads: 2,048 tokens over 32,768 for 16
//                    heads; no more than a step can have, two rows of the longest sequence at
//                    least. Attention makes them in 250 MB, by up to 16 launches a layer
//   max_waiting      as asked, but one batch of rows at least
//
// What cannot fit the machine's memory is refused, with what it needs and what there is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "mla/contract.hpp"
#include "runtime/drafters.hpp"
#include "runtime/model_files.hpp"

namespace espalier::runtime {

// The sizes that a user asks for; 0: derived.
struct SizeOptions {
    std::int64_t rows = 0;   // requests in a step
    std::int64_t pages = 0;  // of the cache, 64 tokens each, beside the null page
    // More are better for throughput, fewer let running requests wait less for others' prompts.
    std::int64_t step_tokens = 2048;
    std::int64_t max_waiting = 1024;  // requests (choices) in the queue
    std::int64_t max_model_len = 0;   // tokens of prompt and output
    // On a GPU: the share of its memory that may be in use, by this process and others together.
    double gpu_memory_utilization = 0.9;
};

// Facts that the sizes depend on besides: the model and the machine.
struct SizeFacts {
    std::int64_t context = 0;       // max_position_embeddings
    std::int64_t weight_bytes = 0;  // all of them stay in memory
    std::int64_t page_bytes = 0;    // a page of the cache, all layers, the drafts' too
    std::int64_t memory_bytes = 0;  // of the device; of a GPU what is free
    std::int64_t gpu_bytes = 0;     // of a GPU the whole; 0: the model runs on the CPU
    // Partial results that attention keeps per token and split: one for each 16 heads. 0: none (the
    // CPU).
    std::int64_t parts_of_split = 0;
    // Bytes that an engine of these sizes takes of a GPU beside weights and pages; null: too few to
    // count.
    std::function<std::int64_t(const EngineSizes&)> working_bytes = {};
    // Rank with the least room of several, whose numbers these are; empty: there is one.
    std::string rank = {};
};

// The format of the model's cache where none is asked for: the activations' own.
Expected<mla::KvFormat> kv_format_of(const checkpoint::Checkpoint& checkpoint);
// The memory that this process may use: the machine's, or its control group's limit.
std::int64_t memory_bytes();
// Device and format of the cache: as the options have them. With a channel the other ranks are
// asked, too.
Expected<SizeFacts> size_facts(const ModelFiles& files, const DrafterChoice& drafters,
                               const LoadOptions& options = {});

// Pure. An error names the option and both numbers.
Expected<EngineSizes> derive_sizes(const SizeOptions& options, const SizeFacts& facts);

}  // namespace espalier::runtime
