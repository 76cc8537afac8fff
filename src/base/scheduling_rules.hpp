// SPDX-License-Identifier: Apache-2.0
// How a scheduler is to work, beside its sizes: what a trace must hold for its plans to be made
// again. Plain data; schedule/scheduler.hpp tells what follows from each.
#pragma once

#include <cstdint>
#include <optional>

namespace espalier {

struct SchedulingRules {
    // Below about 170 queries up-projecting the history costs more than the decompressed form
    // saves, so prompts advance by this much, or by what is left of them.
    std::int64_t prompt_quantum = 512;
    // Segment of cache::decompressed_below: 64, or 256 to run a trace of an older version again. 0:
    // everything is absorbed. Nothing else, because the form decides the bits.
    std::int64_t prefill_segment = 64;
    // As in cache::decompressed_below: the keys that the model's sparse attention chooses. None:
    // all.
    std::optional<std::int64_t> decompressed_keys = {};
    // Off: no request finds what another left (choices of one request still share their prompt).
    bool prefix_cache = true;
    // Lets prompts use pages of generated text where they themselves would compute the decompressed
    // form. Saves work on a chat's next turn, but bits then depend on a hit. Off, a hit always has
    // the bits of recomputation: pages of generated text are found only by prompts that would
    // compute that very form there.
    bool reuse_generated = false;
    // Drafters write KV while they draft, so the pages of an offer are the request's own from
    // offer_nodes on (but Windows::counted). Off: they are counted then and taken in next_plan, as
    // far as they are used.
    bool reserve_windows = false;
    std::uint64_t hash_seed = 0;  // random bits keep clients from choosing bad prompts

    // Visitors are those of trace/events.hpp. A field that is not listed does not compile.
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        auto& [prompt_quantum, prefill_segment, decompressed_keys, prefix_cache, reuse_generated,
               reserve_windows, hash_seed] = self;
        visit.integer("prompt_quantum", prompt_quantum, 0, std::int64_t{1} << 20);
        visit.integer("prefill_segment", prefill_segment, 0, std::int64_t{1} << 20);
        visit.maybe_integer("decompressed_keys", decompressed_keys, 1, std::int64_t{1} << 20);
        visit.flag("prefix_cache", prefix_cache);
        visit.flag("reuse_generated", reuse_generated);
        visit.maybe_flag("reserve_windows", reserve_windows);
        visit.word64("hash_seed", hash_seed);
    }
    bool operator==(const SchedulingRules&) const = default;
};

}  // namespace espalier
