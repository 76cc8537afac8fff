// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling_memory.hpp"

#include <utility>

#include "base/check.hpp"

namespace espalier::ops {

Expected<SamplingMemory> SamplingMemory::create(Device& device, const SamplingCapacity& capacity) {
    const auto allocate = [&device](std::int64_t count, std::size_t each) {
        return device.allocate(static_cast<std::size_t>(count) * each);
    };
    ESPALIER_ASSIGN_OR_RETURN(Buffer batch, device.allocate(capacity.batch_bytes()));
    ESPALIER_ASSIGN_OR_RETURN(Buffer counts, allocate(capacity.counts(), sizeof(TokenCount)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer draws, allocate(capacity.nodes, sizeof(Draw)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer alternatives,
                              allocate(capacity.alternatives(), sizeof(TokenLogprob)));
    return SamplingMemory(device, std::move(batch), std::move(counts), std::move(draws),
                          std::move(alternatives));
}

SamplingMemory::SamplingMemory(Device& device, Buffer batch, Buffer counts, Buffer draws,
                               Buffer alternatives)
    : device_(&device),
      batch_(std::move(batch)),
      counts_(std::move(counts)),
      draws_(std::move(draws)),
      alternatives_(std::move(alternatives)) {}

Expected<SamplingBatch> SamplingMemory::upload(Stream stream, const SamplingBatchBuilder& builder) {
    const auto fits = [](std::int64_t count, std::size_t each, const Buffer& buffer) {
        return static_cast<std::size_t>(count) * each <= buffer.bytes();
    };
    CHECK(builder.bytes().size() <= batch_.bytes() && fits(builder.nodes(), sizeof(Draw), draws_) &&
              fits(builder.alternatives(), sizeof(TokenLogprob), alternatives_) &&
              fits(builder.capacity().counts(), sizeof(TokenCount), counts_),
          "a batch of {} bytes with {} nodes and {} alternatives is beyond the memory for draws",
          builder.bytes().size(), builder.nodes(), builder.alternatives());
    SamplingBatch batch;
    place_arrays(batch, batch_.data(), builder.nodes());
    batch.vocabulary = builder.capacity().vocabulary;
    batch.counts = counts_.as<TokenCount>();
    batch.draws = draws_.as<Draw>();
    batch.alternatives = alternatives_.as<TokenLogprob>();
    for (const CountLoad& load : builder.loads())
        ESPALIER_RETURN_IF_ERROR(device_->upload(stream, batch.counts + load.place,
                                                 load.entries.data(), load.entries.size_bytes()));
    ESPALIER_RETURN_IF_ERROR(
        device_->upload(stream, batch_.data(), builder.bytes().data(), builder.bytes().size()));
    return batch;
}

SamplingBatch SamplingMemory::view_beside(std::byte* arrays, std::int64_t nodes,
                                          std::int64_t vocabulary) const {
    SamplingBatch batch;
    place_arrays(batch, arrays, nodes);
    batch.vocabulary = vocabulary;
    batch.lists = const_cast<std::uint32_t*>(batch_.as<std::uint32_t>());
    batch.counts = const_cast<TokenCount*>(counts_.as<TokenCount>());
    batch.draws = nullptr;
    batch.alternatives = nullptr;
    return batch;
}

std::array<Transfer, 2> SamplingMemory::transfers(std::span<Draw> draws,
                                                  std::span<TokenLogprob> alternatives) const {
    CHECK(
        draws.size_bytes() <= draws_.bytes() && alternatives.size_bytes() <= alternatives_.bytes(),
        "{} draws and {} alternatives", draws.size(), alternatives.size());
    return {{{draws.data(), draws_.data(), draws.size_bytes()},
             {alternatives.data(), alternatives_.data(), alternatives.size_bytes()}}};
}

Expected<void> SamplingMemory::download(Stream stream, std::span<Draw> draws,
                                        std::span<TokenLogprob> alternatives) const {
    return device_->download_all(stream, transfers(draws, alternatives));
}

Expected<void> SamplingMemory::poison(Stream stream) {
    for (Buffer* memory : {&batch_, &draws_, &alternatives_})
        ESPALIER_RETURN_IF_ERROR(
            device_->fill(stream, memory->data(), std::byte{0xFF}, memory->bytes()));
    return {};
}

}  // namespace espalier::ops
