// SPDX-License-Identifier: Apache-2.0
// The shapes that bench mla times: from a CSV with peers' times, or built in; what they cost at
// least; and the groups whose geometric means are reported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mla/contract.hpp"

namespace espalier::cli {

struct MlaShape {
    std::int32_t batch = 1;
    std::int32_t kv_len = 0;
    std::int32_t heads = 0;
    std::int32_t q_len = 1;
    std::optional<double> peer_seconds;

    std::int64_t packed_rows() const { return std::int64_t{heads} * q_len; }  // R
    // The small caches of the contract's speed goals: 1 × 8192 and 10 × 2048.
    bool small_cache() const { return std::int64_t{batch} * kv_len <= 20480; }
};

// A CSV whose header names batch, kv_len, heads and q_len. Peers' times are taken from
// best_bf16_peer_us, for fp8 caches from flashinfer_fp8kv_us, if the file has them.
Expected<std::vector<MlaShape>> read_shapes(const std::string& path, mla::KvFormat format);
std::vector<MlaShape> usual_shapes(bool cuda);

struct MlaCost {
    double bytes = 0;  // cached keys, queries and outputs, once each
    double flops = 0;  // 2 · H · q_len · K · (576 + 512) · batch
};
MlaCost cost_of(const MlaShape& shape, mla::KvFormat format, DType query, DType out);

struct MlaTiming {
    MlaShape shape;
    double seconds = 0;
    double floor_seconds = 0;
    double plan_seconds = 0;  // made once, not part of `seconds`; 0: the device needs none
};

// "R ≤ 64: 12 shapes, 1.13 × the floor, 1.21 × the peer's speed, worst 0.97", one line per group.
std::string group_means(const std::vector<MlaTiming>& timings);

}  // namespace espalier::cli
