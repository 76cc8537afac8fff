// SPDX-License-Identifier: Apache-2.0
// Rows of x of the product that runs, rounded once for all its units: rounding takes as long as a
// few panels' products with them. Used by product.cpp only.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "base/thread_pool.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/rounded_inputs.hpp"

namespace espalier::linalg {

constexpr std::int64_t rounded_blocks(std::int64_t k) {
    return (k + kRoundedInputs - 1) / kRoundedInputs;
}

class RoundedRows {
  public:
    // [rows][blocks of k] for as long as it lives; none where there are more than fit, or where a
    // second product runs at the same time: units then round for themselves, to the same bits.
    class Taken {
      public:
        Taken() = default;
        Taken(std::unique_lock<std::mutex> lock, const RoundedBlock* blocks)
            : lock_(std::move(lock)), blocks_(blocks) {}
        const RoundedBlock* blocks() const { return blocks_; }

      private:
        std::unique_lock<std::mutex> lock_;
        const RoundedBlock* blocks_ = nullptr;
    };

    // On the pool where there are many.
    Taken take(ThreadPool& pool, const Matrix& x, std::int64_t k, FillRow fill_row) {
        const std::int64_t of_row = rounded_blocks(k);
        if (x.rows * of_row > kBlocks) return {};
        std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock) return {};
        const std::int64_t per_task = std::max<std::int64_t>(1, kBlocksPerTask / of_row);
        const auto round = [&](std::int64_t task, int) {
            const std::int64_t end = std::min(x.rows, (task + 1) * per_task);
            for (std::int64_t row = task * per_task; row < end; ++row)
                fill_row(reinterpret_cast<const std::byte*>(x.row<Bf16>(row)), k,
                         of_row * kRoundedInputs,
                         reinterpret_cast<std::byte*>(blocks_.get() + row * of_row));
        };
        if (x.rows <= per_task)
            round(0, 0);
        else
            pool.run((x.rows + per_task - 1) / per_task, round);
        return {std::move(lock), blocks_.get()};
    }

  private:
    static constexpr std::int64_t kBlocks = (32 << 20) / std::int64_t{sizeof(RoundedBlock)};
    static constexpr std::int64_t kBlocksPerTask = 1024;
    std::mutex mutex_;
    // Pages that no product has touched take no memory.
    std::unique_ptr<RoundedBlock[]> blocks_{new RoundedBlock[kBlocks]};
};

}  // namespace espalier::linalg
