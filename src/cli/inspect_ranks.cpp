// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect_ranks.hpp"

#include <algorithm>
#include <ranges>

#include "cli/terminal.hpp"

namespace espalier::cli {

double RankFacts::room_tokens() const {
    double room = 0.9 * memory_bytes - static_cast<double>(ranks.front().embedding);
    for (const model::ShardBytes& rank : ranks) room -= static_cast<double>(rank.packed);
    return std::max(0.0, room / (kv_bytes * static_cast<double>(ranks.size())));
}

Expected<RankFacts> rank_facts(const std::shared_ptr<const checkpoint::Checkpoint>& opened,
                               int ranks, double kv_bytes, double memory_bytes) {
    RankFacts facts{.ranks = {}, .kv_bytes = kv_bytes, .memory_bytes = memory_bytes};
    ESPALIER_RETURN_IF_ERROR(model::check_shard(opened->config(), {.rank = 0, .count = ranks}));
    for (int rank = 0; rank < ranks; ++rank) {
        ESPALIER_ASSIGN_OR_RETURN(const model::ShardBytes bytes,
                                  model::shard_bytes(opened, {.rank = rank, .count = ranks}));
        facts.ranks.push_back(bytes);
    }
    return facts;
}

std::string ranks_text(const RankFacts& facts) {
    const auto [least, most] =
        std::ranges::minmax(facts.ranks | std::views::transform(&model::ShardBytes::packed));
    const std::string weights =
        least == most ? bytes_text(static_cast<double>(most))
                      : fmt::format("{} to {}", bytes_text(static_cast<double>(least)),
                                    bytes_text(static_cast<double>(most)));
    const auto stored = static_cast<double>(
        std::ranges::max(facts.ranks | std::views::transform(&model::ShardBytes::stored)));
    const double room = facts.room_tokens();
    return fmt::format(
        "{}: {} of weights on each, MTP included ({} with scales as stored), and {} of embedding; "
        "{}",
        facts.ranks.size(), weights, bytes_text(stored),
        bytes_text(static_cast<double>(facts.ranks.front().embedding)),
        room > 0
            ? fmt::format("all on this machine: room for {:.0f} tokens", room)
            : fmt::format("not all on this machine: {} of memory", bytes_text(facts.memory_bytes)));
}

nlohmann::ordered_json ranks_json(const RankFacts& facts) {
    auto ranks = nlohmann::ordered_json::array();
    for (std::size_t rank = 0; rank < facts.ranks.size(); ++rank)
        ranks.push_back({{"rank", rank},
                         {"weight_bytes", facts.ranks[rank].packed},
                         {"stored_bytes", facts.ranks[rank].stored},
                         {"embedding_bytes", facts.ranks[rank].embedding}});
    return {{"ranks", std::move(ranks)}, {"room_tokens", facts.room_tokens()}};
}

}  // namespace espalier::cli
