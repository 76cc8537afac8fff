// SPDX-License-Identifier: Apache-2.0
// Routed experts that stay on disk: mapped from a packed file, so that the system keeps in memory
// what fits and is used. As soon as a layer's router has chosen, what is missing of its experts is
// asked for, all of it at once; the shared expert is computed meanwhile. Same bits either way.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "checkpoint/checkpoint.hpp"
#include "linalg/weight.hpp"

namespace espalier::model {

// Bytes of experts that steps have needed since the start, a layer's each time, and of them those
// that were in memory when the router chose. Read by any thread.
struct ExpertReads {
    std::atomic<std::int64_t> needed = 0;
    std::atomic<std::int64_t> in_memory = 0;

    // Share of needed bytes that were in memory; 1 where nothing was needed.
    double hit_rate() const;
};

class MappedExperts {
  public:
    // Stacks of as many experts each, in a mapped file. All borrowed.
    MappedExperts(const linalg::WeightView& gate_up, const linalg::WeightView& down,
                  ExpertReads& reads);

    // indptr [experts + 1]: experts with a pair are read ahead (ops::ExpertPlan).
    void read_ahead(const std::int32_t* indptr) const;

  private:
    linalg::WeightView gate_up_;
    linalg::WeightView down_;
    ExpertReads* reads_;
};

// Part of the names of all tensors of routed experts.
inline constexpr std::string_view kExperts = ".mlp.experts.";

// Bytes of a checkpoint's routed experts.
std::uint64_t expert_bytes(const checkpoint::Checkpoint& checkpoint);

}  // namespace espalier::model
