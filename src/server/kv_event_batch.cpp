// SPDX-License-Identifier: Apache-2.0
#include "server/kv_event_batch.hpp"

#include <nlohmann/json.hpp>

namespace espalier::server {
namespace {

using KvJson = nlohmann::json;

// The engine's own memory, whatever the device: the name that routers weigh highest.
constexpr const char* kMedium = "GPU";

// From `at` on: the chain's pages, each the next one's parent. Returns the end.
std::size_t add_stored(std::span<const KvEvent> events, std::size_t at, KvJson& list) {
    KvJson hashes = KvJson::array(), tokens = KvJson::array(), parent;
    if (events[at].parent_hash) parent = *events[at].parent_hash;
    std::size_t end = at;
    do {
        hashes.push_back(events[end].hash);
        for (const std::int32_t token : events[end].tokens) tokens.push_back(token);
        ++end;
    } while (end < events.size() && events[end].kind == KvEvent::Kind::stored &&
             events[end].parent_hash == events[end - 1].hash);
    list.push_back(KvJson::array({"BlockStored", std::move(hashes), std::move(parent),
                                  std::move(tokens), cache::kPageTokens, nullptr, kMedium}));
    return end;
}

std::size_t add_removed(std::span<const KvEvent> events, std::size_t at, KvJson& list) {
    KvJson hashes = KvJson::array();
    for (; at < events.size() && events[at].kind == KvEvent::Kind::removed; ++at)
        hashes.push_back(events[at].hash);
    list.push_back(KvJson::array({"BlockRemoved", std::move(hashes), kMedium}));
    return at;
}

}  // namespace

std::vector<std::uint8_t> encode_kv_events(double seconds, std::span<const KvEvent> events) {
    KvJson list = KvJson::array();
    for (std::size_t at = 0; at < events.size();) {
        switch (events[at].kind) {
            case KvEvent::Kind::stored:
                at = add_stored(events, at, list);
                break;
            case KvEvent::Kind::removed:
                at = add_removed(events, at, list);
                break;
            case KvEvent::Kind::all_cleared:
                list.push_back(KvJson::array({"AllBlocksCleared"}));
                ++at;
                break;
        }
    }
    return KvJson::to_msgpack(KvJson::array({seconds, std::move(list), 0}));
}

}  // namespace espalier::server
