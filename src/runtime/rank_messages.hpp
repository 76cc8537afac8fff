// SPDX-License-Identifier: Apache-2.0
// What the first rank says of a model and of an engine when it sets them up on the others, and what
// they answer: plain data, written and read as flat buffers. A reader checks every number that
// decides an allocation or a choice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "base/flat_buffer.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::runtime {

// A model as every rank opens it. An EAGLE3 draft is not in it: the first rank has it whole.
struct RankModel {
    std::string path;  // of the directory or file, absolute
    int threads = 0;
    std::optional<mla::KvFormat> kv_format = {};
    std::optional<WeightCode> rounding = {}, head_rounding = {};
    std::optional<NumberMode> activations = {};
    bool mmap_experts = false;
    bool mtp = false;
    EngineSizes sizes = {};  // with `open`

    LoadOptions load_options() const;
    bool operator==(const RankModel&) const = default;
};
void write(FlatWriter& writer, const RankModel& model);
Expected<RankModel> read_rank_model(FlatReader& reader);

// Numbers of one rank that sizes are derived from.
struct RankNumbers {
    std::string machine;  // its name and boot
    std::int64_t memory_bytes = 0, weight_bytes = 0, page_bytes = 0;
    bool operator==(const RankNumbers&) const = default;
};
void write(FlatWriter& writer, const RankNumbers& numbers);
Expected<RankNumbers> read_rank_numbers(FlatReader& reader);

// An engine on the opened model.
struct RankEngine {
    EngineSizes sizes;
    bool mtp = false;  // its layer drafts
    bool operator==(const RankEngine&) const = default;
};
void write(FlatWriter& writer, const RankEngine& engine);
Expected<RankEngine> read_rank_engine(FlatReader& reader);

// Facts that must be the same on all ranks, by name.
struct RankFact {
    std::string name, value;
    bool operator==(const RankFact&) const = default;
};
using RankFacts = std::vector<RankFact>;
void write(FlatWriter& writer, const RankFacts& facts);
Expected<RankFacts> read_rank_facts(FlatReader& reader);
// Version and build, identity of texts, files (checkpoint::header_hash) and sizes.
Expected<RankFacts> rank_facts(const LoadedModel& loaded, const EngineSizes& sizes);
// An error names the rank and the first fact that differs.
Expected<void> check_same(const RankFacts& first, const RankFacts& other, const std::string& rank);

// The machine by host name and boot.
std::string machine_identity();

}  // namespace espalier::runtime
