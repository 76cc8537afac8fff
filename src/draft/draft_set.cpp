// SPDX-License-Identifier: Apache-2.0
#include "draft/draft_set.hpp"

#include <utility>

#include "draft/eagle3.hpp"
#include "draft/mtp.hpp"

namespace espalier::draft {

cache::KvLayout layout_with(cache::KvLayout target, std::span<const std::int64_t> state_widths) {
    for (const std::int64_t width : state_widths) {
        target.draft.push_back(target.target.front());
        target.tail_hidden += width;
    }
    return target;
}

std::vector<std::unique_ptr<Network>> DraftSet::networks() const {
    std::vector<std::unique_ptr<Network>> networks;
    if (mtp) networks.push_back(make_mtp(target.config(), target.weights()));
    if (eagle3) networks.push_back(make_eagle3(eagle3, target.weights()));
    return networks;
}

cache::KvLayout DraftSet::layout() const {
    std::vector<std::int64_t> widths;
    for (const auto& network : networks()) widths.push_back(network->shape().state);
    return layout_with(target.kv_layout(), widths);
}

Expected<model::TapMemory> DraftSet::make_taps(std::int64_t max_tokens) const {
    std::vector<std::int32_t> layers;
    if (eagle3) layers = eagle3->tap_layers;
    return model::TapMemory::create(target.device(), target.config(), std::move(layers), mtp,
                                    max_tokens);
}

Expected<std::vector<std::unique_ptr<ModelDrafter>>> DraftSet::make(const Machine& machine,
                                                                    const PassLimits& limits,
                                                                    cache::KvStorage& storage,
                                                                    const model::Taps& taps) const {
    std::vector<std::unique_ptr<ModelDrafter>> drafters;
    DraftCache cache{storage};
    for (auto& network : networks()) {
        const std::int64_t width = network->shape().state;
        ESPALIER_ASSIGN_OR_RETURN(
            auto drafter, ModelDrafter::create(std::move(network), machine, limits, cache, taps,
                                               target.config().vocab_size));
        drafters.push_back(std::move(drafter));
        ++cache.layer;
        cache.first_tail += width;
    }
    return drafters;
}

}  // namespace espalier::draft
