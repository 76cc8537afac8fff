// SPDX-License-Identifier: Apache-2.0
// inspect --tp: the part of a model that each rank of an engine would hold.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "model/shard_bytes.hpp"

namespace espalier::cli {

struct RankFacts {
    std::vector<model::ShardBytes> ranks;  // by rank
    double kv_bytes = 0;                   // of the cache for a token, on every rank
    double memory_bytes = 0;               // of this machine

    // Tokens of cache for which nine tenths of the memory have room beside all ranks' weights, if
    // all run here; 0: they do not fit.
    double room_tokens() const;
};

Expected<RankFacts> rank_facts(const std::shared_ptr<const checkpoint::Checkpoint>& opened,
                               int ranks, double kv_bytes, double memory_bytes);
std::string ranks_text(const RankFacts& facts);
nlohmann::ordered_json ranks_json(const RankFacts& facts);

}  // namespace espalier::cli
