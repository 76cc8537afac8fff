// SPDX-License-Identifier: Apache-2.0
#include "draft/draft_set.hpp"

#include <utility>

#include "base/check.hpp"
#include "draft/eagle3.hpp"
#include "draft/mtp.hpp"

namespace espalier::draft {

cache::KvLayout layout_with(const cache::KvLayout& target, std::span<const DraftPlanes> drafts) {
    using cache::Plane;
    cache::KvLayout layout = target;
    for (std::int64_t draft = 0; draft < std::ssize(drafts); ++draft) {
        const DraftPlanes& own = drafts[static_cast<std::size_t>(draft)];
        for (Plane plane : target.layer(Plane::Of::target, 0).planes) {
            if (plane.name == cache::kIndexKeys && !own.indexer) continue;
            plane.model = Plane::Of::draft;
            plane.layer = draft;
            layout.planes.push_back(plane);
        }
        layout.planes.push_back(cache::tail_plane(draft, own.state_width));
    }
    return layout;
}

std::vector<std::unique_ptr<Network>> DraftSet::networks() const {
    std::vector<std::unique_ptr<Network>> networks;
    if (mtp) networks.push_back(make_mtp(target.config(), target.weights()));
    if (eagle3) networks.push_back(make_eagle3(eagle3, target.weights()));
    return networks;
}

cache::KvLayout DraftSet::layout() const {
    std::vector<DraftPlanes> planes;
    for (const auto& network : networks())
        planes.push_back({network->shape().state, network->shape().config.indexer.has_value()});
    return layout_with(target.kv_layout(), planes);
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
                                                                    const model::Taps& taps,
                                                                    PassEcho* echo) const {
    std::vector<std::unique_ptr<ModelDrafter>> drafters;
    DraftCache cache{storage};
    for (auto& network : networks()) {
        const bool of_target = mtp && cache.layer == 0;
        Machine here = machine;
        if (!of_target) here.ranks = nullptr;
        ESPALIER_ASSIGN_OR_RETURN(
            auto drafter,
            ModelDrafter::create(std::move(network), here, limits, cache, taps,
                                 target.config().vocab_size, of_target ? echo : nullptr));
        drafters.push_back(std::move(drafter));
        ++cache.layer;
    }
    return drafters;
}

Expected<std::unique_ptr<DraftPasses>> DraftSet::make_passes(const Machine& machine,
                                                             const PassLimits& limits,
                                                             cache::KvStorage& storage,
                                                             const model::Taps& taps) const {
    CHECK(mtp && eagle3 == nullptr, "passes of the target's own layer alone");
    return DraftPasses::create(std::move(networks().front()), machine, limits, {storage}, taps);
}

}  // namespace espalier::draft
