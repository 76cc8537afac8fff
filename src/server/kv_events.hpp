// SPDX-License-Identifier: Apache-2.0
// Publishes what the prefix cache holds over ZeroMQ, as vLLM does, so that routers send a prompt to
// where its beginning lies. The engine's thread hands events over and goes on; a thread of this
// class numbers them, sends them, and keeps the last for subscribers that missed some.
#pragma once

#include <memory>
#include <string>

#include "base/error.hpp"
#include "cache/page_events.hpp"
#include "server/log.hpp"

namespace espalier::server {

struct KvEventOptions {
    std::string endpoint, replay_endpoint, topic;  // replay_endpoint empty: none
};

class KvEvents : public cache::PageEvents {
  public:
    // Listens (or connects, where the endpoint names another machine) from here on. Errors name
    // kv_events_endpoint or kv_events_replay_endpoint. The log outlives it.
    static Expected<std::shared_ptr<KvEvents>> start(const KvEventOptions& options, Log& log);

    // Addresses with the ports that were taken.
    virtual std::string endpoint() const = 0;
    virtual std::string replay_endpoint() const = 0;

    // Limits of what is kept for replays, and of what may wait for the thread.
    static constexpr std::size_t kMaxBatches = 10'000;
    static constexpr std::size_t kMaxBytes = 256 << 20;
    static constexpr std::size_t kMaxWaiting = 100'000;  // events
};

}  // namespace espalier::server
