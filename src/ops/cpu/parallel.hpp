// SPDX-License-Identifier: Apache-2.0
// How elementwise work on [rows, cols] is cut into tasks. Cuts never change bits: every element
// stands alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.hpp"

namespace espalier::ops {

// Waking and joining a spinning pool costs 1–3 µs, about what one core needs for 16384 f32 in
// cache.
inline constexpr std::int64_t kTaskElements = 16384;

// body(row) for every row.
template <typename Body>
void for_rows(ThreadPool& pool, std::int64_t rows, std::int64_t cols, const Body& body) {
    const std::int64_t rows_per_task =
        std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, cols));
    const std::int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
    pool.run(tasks, [&](std::int64_t task, int) {
        const std::int64_t end = std::min(rows, (task + 1) * rows_per_task);
        for (std::int64_t row = task * rows_per_task; row < end; ++row) body(row);
    });
}

// body(row, first, count): long rows are cut into column ranges as well.
template <typename Body>
void for_ranges(ThreadPool& pool, std::int64_t rows, std::int64_t cols, const Body& body) {
    const std::int64_t ranges =
        std::max<std::int64_t>(1, (cols + kTaskElements - 1) / kTaskElements);
    const std::int64_t width = (cols + ranges - 1) / ranges;
    for_rows(pool, rows * ranges, width, [&](std::int64_t piece) {
        const std::int64_t first = piece % ranges * width;
        body(piece / ranges, first, std::min(width, cols - first));
    });
}

}  // namespace espalier::ops
