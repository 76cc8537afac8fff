// SPDX-License-Identifier: Apache-2.0
// News of the prefix cache in the form of vLLM's KV events: a msgpack array [seconds, [event, …],
// data-parallel rank], each event an array that begins with its name. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/page.hpp"

namespace espalier::server {

struct KvEvent {
    enum class Kind : std::uint8_t { stored, removed, all_cleared };
    Kind kind = Kind::all_cleared;
    std::uint64_t hash = 0;
    std::optional<std::uint64_t> parent_hash = {};          // of a stored page
    std::array<std::int32_t, cache::kPageTokens> tokens{};  // of a stored page
};

// Pages of one chain that follow one another are one event, and so are removals.
std::vector<std::uint8_t> encode_kv_events(double seconds, std::span<const KvEvent> events);

}  // namespace espalier::server
