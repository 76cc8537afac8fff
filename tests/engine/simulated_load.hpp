// SPDX-License-Identifier: Apache-2.0
// Loads on a simulated server: clients who send their next request when the last has ended, or one
// client's chats and what it asks after them. So what automatic speculation comes to can be
// compared with what it might have come to, whatever runs beside the test.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/simulated_server.hpp"

namespace espalier::engine {

struct SimulatedLoad {
    std::int64_t clients = 1;
    std::int64_t prompt = 100, output = 128;
    bool spread_lengths = false;   // 1/4 to 7/4 of the output instead
    bool in_batches = false;       // requests wait until all that run have ended
    std::int64_t long_prompt = 0;  // of every second request, where it is not 0
    int prompts = 0;               // different ones; 0: no two are the same
    std::int64_t pages = 10;       // of the cache, for each client
    std::int64_t steps = 1000;     // that plain decoding would take, about
    // Prescribed levels, 0: what pays.
    std::int32_t depth = 0;
    // The share of requests that prescribe trees of four levels of three nodes.
    double prescribed = 0;
    double chats = 0;  // the share of requests that are chats (SimulatedDrafter::right_in_chats)
    float temperature = 0;
    std::uint64_t seed = 0;  // of prompts and lengths
    speculate::Memory known = {};
};

struct SimulatedResult {
    double tokens_per_second = 0;
    double later = 0;          // the same of the second half
    double accepted = 0;       // drafts, per step and row
    double levels = 0;         // of draft models, per step
    double drafts = 0;         // verified, per step and row
    double with_prompts = 0;   // share of steps
    double looked_on = 0;      // share of steps in which some drafter did
    double prompt_tokens = 0;  // computed, per request
};

SimulatedResult simulate(const SimulatedMachine& machine,
                         const std::vector<SimulatedDrafter>& drafters, const SimulatedLoad& load);

// One client of a server that has just started: first short chats, of which some prescribe trees of
// four levels of three nodes, then requests whose texts repeat.
struct SimulatedChats {
    std::int64_t chats = 25, chat_tokens = 24;
    std::int64_t requests = 5, tokens = 400;
    double prescribed = 0.5;  // share of the chats
};
// Seconds of eight servers that have just started, each with one client's request of this many
// tokens. learnt: what they start from, and, if wanted, what the first of them learns.
double simulate_starts(const SimulatedMachine& machine,
                       const std::vector<SimulatedDrafter>& drafters, std::int64_t tokens,
                       std::int32_t depth, const speculate::Memory& known = {},
                       speculate::Memory* learnt = nullptr);

// The steps that each of the requests behind the chats took.
std::vector<std::int64_t> simulate(const SimulatedMachine& machine,
                                   const std::vector<SimulatedDrafter>& drafters,
                                   const SimulatedChats& chats);

}  // namespace espalier::engine
