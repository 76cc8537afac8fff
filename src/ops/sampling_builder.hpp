// SPDX-License-Identifier: Apache-2.0
// Lays a step's draws into one buffer of the host (ops/sampling_batch.hpp has the layout) and keeps
// book of which requests' committed counts the device holds. All memory is taken at creation; what
// no step touches is never backed. A mistake of the caller is found here, before a device reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "ops/sampling_batch.hpp"

namespace espalier::ops {

// Upper bounds over all steps.
struct SamplingCapacity {
    std::int64_t nodes = 0;
    std::int64_t requests = 0;
    std::int64_t vocabulary = 0;
    std::int64_t max_context = 0;  // tokens of the longest request: bounds what it can count
    std::int64_t biases = 0;       // of a request
    std::int64_t banned = 0;       // of a request
    std::int64_t masks = 0;        // of a step

    bool operator==(const SamplingCapacity&) const = default;
    std::int64_t mask_words() const { return (vocabulary + 31) / 32; }
    std::int64_t count_stride() const;  // entries that a request's counts may have
    std::int64_t list_words() const;    // of SamplingBatch::lists
    std::size_t batch_bytes() const;    // of the buffer
    std::int64_t counts() const { return requests * count_stride(); }
    std::int64_t alternatives() const { return nodes * kMaxTopLogprobs; }
};

// All counts of a request that the device does not have, because the request is new or another one
// took its slot meanwhile. Uploaded once, before the batch.
struct CountLoad {
    std::uint32_t place = 0;
    std::span<const TokenCount> entries;  // borrowed from the request
};

// Request of one node. Ranges come from the builder, and nodes may share them.
struct NodeRequest {
    DrawParameters parameters{};
    std::int32_t position = 0;
    std::int32_t choice = 0;
    std::int32_t wanted = kDraw;
    bool logprob = true;
    std::int32_t alternatives = 0;
    ListRange biases{}, banned{}, committed{};
    std::span<const TokenCount> changed{};
    std::int32_t allowed = -1;
};

class SamplingBatchBuilder {
  public:
    static Expected<SamplingBatchBuilder> create(const SamplingCapacity& capacity);

    // A step of `nodes` rows of logits. Rows that get no node are pads.
    void begin(std::int64_t nodes);
    ListRange add_biases(std::span<const LogitBias> biases);
    ListRange add_banned(std::span<const std::int32_t> tokens);
    // A mask of [mask_words] to be filled before finish(); `place` is what nodes name it by.
    std::span<std::uint32_t> add_mask(std::int32_t& place);
    // request: a number that no other request ever has.
    ListRange add_counts(std::int64_t request, const CommittedCounts& counts);
    // Returns where the node's alternatives will be.
    ListRange add(const NodeRequest& node);
    void finish();

    // After finish(), until begin():
    const SamplingCapacity& capacity() const { return capacity_; }
    std::int64_t nodes() const { return host_.nodes; }  // pads included
    std::span<const std::byte> bytes() const { return {memory(), used_bytes_}; }
    std::span<const CountLoad> loads() const { return loads_; }
    std::int64_t alternatives() const { return alternatives_; }

  private:
    // The request whose counts the device holds at slot · count_stride, and up to which change.
    struct CountSlot {
        std::int64_t request = -1;
        std::int64_t step = 0;  // of its last use
        std::size_t entries = 0;
        std::int64_t changes = 0;
    };

    struct alignas(64) CacheLine {
        std::byte bytes[64];
    };

    explicit SamplingBatchBuilder(const SamplingCapacity& capacity);
    std::byte* memory() const { return memory_.get()->bytes; }
    std::uint32_t take_words(std::size_t words);
    template <typename T>
    ListRange append(std::span<const T> entries);
    void check_counts(std::span<const TokenCount> counts) const;
    std::size_t slot_of(std::int64_t request);
    void update(std::size_t slot, const CommittedCounts& counts);

    SamplingCapacity capacity_;
    std::unique_ptr<CacheLine[]> memory_;  // batch_bytes, not touched before they are needed
    SamplingBatch host_;
    std::int64_t added_ = 0;
    std::int64_t masks_ = 0;
    std::size_t words_ = 0;  // of host_.lists
    std::int64_t alternatives_ = 0;
    std::size_t used_bytes_ = 0;
    std::vector<CountLoad> loads_;
    std::vector<CountUpdate> updates_;
    std::vector<CountSlot> slots_;
    std::size_t next_slot_ = 0;  // requests mostly come in the order of the step before
    std::int64_t step_ = 0;
};

}  // namespace espalier::ops
