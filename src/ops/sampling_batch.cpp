// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling_batch.hpp"

#include "ops/sampling_node.hpp"

namespace espalier::ops {

std::size_t place_arrays(SamplingBatch& batch, std::byte* base, std::int64_t nodes) {
    std::size_t used = 0;
    const auto place = [&](auto*& array, std::int64_t count) {
        array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(base + used);
        used += (static_cast<std::size_t>(count) * sizeof(*array) + 63) / 64 * 64;
    };
    batch.nodes = nodes;
    place(batch.parameters, nodes);
    place(batch.position, nodes);
    place(batch.choice, nodes);
    place(batch.wanted, nodes);
    place(batch.logprob, nodes);
    place(batch.biases, nodes);
    place(batch.banned, nodes);
    place(batch.changed, nodes);
    place(batch.committed, nodes);
    place(batch.allowed, nodes);
    place(batch.reported, nodes);
    place(batch.updates, 1);
    place(batch.lists, 0);
    return used;
}

SamplingNode node_of(const SamplingBatch& batch, std::int64_t g) {
    SamplingNode node;
    static_cast<DrawParameters&>(node) = batch.parameters[g];
    node.position = batch.position[g];
    node.choice = batch.choice[g];
    node.wanted = batch.wanted[g];
    node.logprob = batch.logprob[g] != 0;
    node.biases = batch.list<LogitBias>(batch.biases[g]);
    node.banned = batch.list<std::int32_t>(batch.banned[g]);
    node.committed = {batch.counts + batch.committed[g].first, batch.committed[g].count};
    node.changed = batch.list<TokenCount>(batch.changed[g]);
    if (batch.allowed[g] >= 0) node.allowed = batch.lists + batch.allowed[g];
    return node;
}

void apply_count_updates(const SamplingBatch& batch) {
    for (const CountUpdate& update : batch.list<CountUpdate>(*batch.updates))
        batch.counts[update.place] = update.count;
}

}  // namespace espalier::ops
