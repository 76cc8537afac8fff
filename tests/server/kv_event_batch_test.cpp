// SPDX-License-Identifier: Apache-2.0
#include "server/kv_event_batch.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using Kind = KvEvent::Kind;

KvEvent stored(std::uint64_t hash, std::optional<std::uint64_t> parent, std::int32_t token) {
    KvEvent event{.kind = Kind::stored, .hash = hash};
    event.parent_hash = parent;
    event.tokens.fill(token);
    return event;
}

Json tokens(std::initializer_list<std::int32_t> of_pages) {
    Json list = Json::array();
    for (const std::int32_t token : of_pages)
        for (int i = 0; i < cache::kPageTokens; ++i) list.push_back(token);
    return list;
}

TEST(KvEventBatch, HasVllmsForm) {
    const std::uint64_t large = 0xfedcba9876543210ull;
    const KvEvent events[] = {{},
                              stored(large, {}, 100'000),
                              stored(5, large, 7),
                              stored(6, large, 8),  // another branch
                              {.kind = Kind::removed, .hash = 6},
                              {.kind = Kind::removed, .hash = 5},
                              stored(5, large, 7)};
    const Json batch = Json::from_msgpack(encode_kv_events(1.5e9 + 0.25, events));
    const Json list = {
        {"AllBlocksCleared"},
        {"BlockStored", {large, 5}, nullptr, tokens({100'000, 7}), 64, nullptr, "GPU"},
        {"BlockStored", {6}, large, tokens({8}), 64, nullptr, "GPU"},
        {"BlockRemoved", {6, 5}, "GPU"},
        {"BlockStored", {5}, large, tokens({7}), 64, nullptr, "GPU"}};
    EXPECT_EQ(batch, Json::array({1.5e9 + 0.25, list, 0}));
}

}  // namespace
}  // namespace espalier::server
