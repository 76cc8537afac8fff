// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling_memory.hpp"

#include <cstring>
#include <utility>

#include "base/check.hpp"

namespace espalier::ops {

Expected<SamplingMemory> SamplingMemory::create(const SamplingCapacity& capacity) {
    const auto bytes = [](std::int64_t count, std::size_t each) {
        return static_cast<std::size_t>(count) * each;
    };
    ESPALIER_ASSIGN_OR_RETURN(Buffer batch, Buffer::host(capacity.batch_bytes()));
    ESPALIER_ASSIGN_OR_RETURN(Buffer counts,
                              Buffer::host(bytes(capacity.counts(), sizeof(TokenCount))));
    ESPALIER_ASSIGN_OR_RETURN(Buffer draws, Buffer::host(bytes(capacity.nodes, sizeof(Draw))));
    ESPALIER_ASSIGN_OR_RETURN(Buffer alternatives,
                              Buffer::host(bytes(capacity.alternatives(), sizeof(TokenLogprob))));
    return SamplingMemory(std::move(batch), std::move(counts), std::move(draws),
                          std::move(alternatives));
}

SamplingMemory::SamplingMemory(Buffer batch, Buffer counts, Buffer draws, Buffer alternatives)
    : batch_(std::move(batch)),
      counts_(std::move(counts)),
      draws_(std::move(draws)),
      alternatives_(std::move(alternatives)) {}

SamplingBatch SamplingMemory::upload(const SamplingBatchBuilder& builder) {
    CHECK(builder.bytes().size() <= batch_.bytes(), "a batch of {} bytes for {}",
          builder.bytes().size(), batch_.bytes());
    for (const CountLoad& load : builder.loads())
        std::memcpy(counts_.as<TokenCount>() + load.place, load.entries.data(),
                    load.entries.size_bytes());
    std::memcpy(batch_.data(), builder.bytes().data(), builder.bytes().size());
    SamplingBatch batch;
    place_arrays(batch, batch_.data(), builder.nodes());
    batch.vocabulary = builder.capacity().vocabulary;
    batch.counts = counts_.as<TokenCount>();
    batch.draws = draws_.as<Draw>();
    batch.alternatives = alternatives_.as<TokenLogprob>();
    return batch;
}

void SamplingMemory::download(std::span<Draw> draws, std::span<TokenLogprob> alternatives) const {
    CHECK(
        draws.size_bytes() <= draws_.bytes() && alternatives.size_bytes() <= alternatives_.bytes(),
        "{} draws and {} alternatives", draws.size(), alternatives.size());
    if (!draws.empty()) std::memcpy(draws.data(), draws_.data(), draws.size_bytes());
    if (!alternatives.empty())
        std::memcpy(alternatives.data(), alternatives_.data(), alternatives.size_bytes());
}

}  // namespace espalier::ops
