// SPDX-License-Identifier: Apache-2.0
// The two output warpgroups: each owns 256 of the 512 value columns of 64 packed
// rows, O += P·V, with V a transposed view of the key tile. A thread has rows g and g + 8 of its
// warp's sixteen, or row g of eight where they are spread, and columns 8j + 2c, 8j + 2c + 1.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/memory.cuh"
#include "mla/cuda/absorbed/hopper/invariant_merge.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat, int kColumns, bool kInvariant>
class OutputHalf {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr bool kSpread = kInvariant && kColumns <= kFewRows;
    static constexpr int kSums = 64;  // of 128 columns; two such pieces

  public:
    __device__ OutputHalf(const AbsorbedParams& p, Shared& shared, int half)
        : p_(p),
          shared_(shared),
          half_(half),
          warp_(threadIdx.x % 128 / 32),
          lane_(threadIdx.x % 32),
          turn_(kSpread && p.query_rows <= kStripRows && half > 0 ? 2 : 0),
          row_((warp_ + turn_) % 4 * (kSpread ? 8 : 16) + lane_ / 4) {}

    __device__ void run() {
        while (accumulate()) {
            merge_share<false, kColumns <= kFewRows>(p_, shared_.items[items_.index], shared_);
            release_item();
        }
    }

  private:
    // Up to an item that merges, which has no need of these registers; false: up to the end.
    __device__ bool accumulate() {
        float out[2][kSums];
        clear(out);
        hold(out[0]);
        hold(out[1]);
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return false;
            if (kInvariant && (uniform(item.flags) & kMerges) != 0) return true;
            add_item(item, out);
            release_item();
        }
    }
    __device__ void release_item() {
        arrive_as_warp(&shared_.item_free[items_.index]);
        items_.advance();
    }

    __device__ static void clear(float (&out)[2][kSums]) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) out[0][i] = out[1][i] = 0.0f;
    }

    __device__ void add_item(const Item& item, float (&out)[2][kSums]) {
        if (kInvariant && threadIdx.x % kOutputThreads == 0) look_at_counter(p_, item, shared_);
        int tile = uniform(item.tile_begin);
        SplitRun<kInvariant> run(item);
        while (run.next()) {
            if (item_says<kInvariant>(item, kStarts)) clear(out);
            for (const int end = run.end(); tile < end; ++tile)
                add_tile(may_gather<kInvariant>(p_, item), out);
            if (item_says<kInvariant>(item, kEnds)) finish(item, run, out);
        }
    }

    __device__ void add_tile(bool gathered, float (&out)[2][kSums]) {
        wait(&shared_.keys_full[keys_.index], keys_.phase);  // makes them visible to this thread
        if (gathered) fence_async_proxy();
        wait(&shared_.weights_full[0], weights_phase_);
        weights_phase_ ^= 1;
        if (uniform(shared_.rescale[(warp_ + turn_) % 4]) != 0) rescale(out);
        const std::uint32_t keys = shared_address(shared_.keys[keys_.index]);
        const std::uint64_t weights =
            row_descriptor(shared_address(shared_.weights[0]) - turn_ * 1024, kSpread);
        const std::uint64_t values = descriptor(keys + half_ * 4 * kBlockBytes, kBlockBytes);
        hold(out[0]);
        hold(out[1]);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int piece = 0; piece < 2; ++piece)
                wgmma_values<T::kElement>(out[piece], weights + (step * 32 >> 4),
                                          values + ((step * 2048 + piece * 2 * kBlockBytes) >> 4));
        wgmma_commit();
        wgmma_wait<0>();
        hold(out[0]);
        hold(out[1]);
        arrive_as_warp(&shared_.keys_free[keys_.index]);
        arrive_as_warp(&shared_.weights_free[0]);
        keys_.advance();
    }

    __device__ void rescale(float (&out)[2][kSums]) {
        const float upper = shared_.factor[row_];
        const float lower = kSpread ? 1.0f : shared_.factor[row_ + 8];
#pragma unroll
        for (int i = 0; i < 2 * kSums; i += 4) {
            float* quad = &out[i / kSums][i % kSums];
            quad[0] *= upper;
            quad[1] *= upper;
            quad[2] *= lower;
            quad[3] *= lower;
        }
    }

    __device__ void finish(const Item& item, const SplitRun<kInvariant>& run,
                           float (&out)[2][kSums]) {
        wait(&shared_.final_full, final_phase_);
        final_phase_ ^= 1;
        if constexpr (kInvariant) {
            // Strips of sixteen rows are stored whole.
            if (row_ / kStripRows * kStripRows < item.columns) store_rounded(item, run.slot(), out);
        } else {
            if (warp_ * 16 < item.columns) store_rows(item, out);
        }
        arrive_as_warp(&shared_.final_free);
        if (kInvariant && run.last()) count_partials(p_, item);
    }

    // Columns 8j + 2c and 8j + 2c + 1 of row g are sums 4j and 4j + 1, of row g + 8 the next two.
    __device__ static float& sum(float (&out)[2][kSums], int j, int half, int i) {
        return out[j / 16][j % 16 * 4 + 2 * half + i];
    }

    // Each row in 16 bits: to the output if it has no other splits, or to where it waits for them.
    __device__ void store_rounded(const Item& item, int slot, float (&out)[2][kSums]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 1 && kSpread) break;
            const int row = row_ + 8 * half;
            const float factor = row < item.columns ? shared_.final_factor[row] : 0.0f;
            float chain[4] = {};
#pragma unroll
            for (int j = 0; j < 32; ++j)
                chain[j % 4] = fmaxf(
                    chain[j % 4], fmaxf(fabsf(sum(out, j, half, 0)), fabsf(sum(out, j, half, 1))));
            float largest = fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const RowScale of_row(largest, factor);
            if (slot < 0) {
                if (row < item.columns) write_rounded(item, row, half, of_row, out);
                continue;
            }
            const PartialPlace<kSpread> place(p_, item, slot + row / kStripRows, lane_);
            store_at_once(place.row(half_ * 4 + lane_ % 4, row % kStripRows),
                          {shared_.final_lse[row], of_row.inverse});
            uint4* chunk = place.chunk(half_ * 8 + row / 8 % 2);
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const auto packed = [&](int j) {
                    return RowScale::packed(of_row.scale, sum(out, 4 * k + j, half, 0),
                                            sum(out, 4 * k + j, half, 1));
                };
                store_codes(chunk + (k / 2 * 2 * kChunkBytes / 16 + k % 2 * 32),
                            uint4{packed(0), packed(1), packed(2), packed(3)});
            }
        }
    }

    __device__ void write_rounded(const Item& item, int row, int half, const RowScale& of_row,
                                  float (&out)[2][kSums]) {
        const int column = half_ * 256 + lane_ % 4 * 2;
        const long long to = static_cast<long long>(item.packed_first + row) * kLatent + column;
        const auto each = [&](auto store) {
#pragma unroll
            for (int j = 0; j < 32; ++j)
                store(to + 8 * j,
                      RowScale::rounded(of_row.scale, of_row.inverse, sum(out, j, half, 0)),
                      RowScale::rounded(of_row.scale, of_row.inverse, sum(out, j, half, 1)));
        };
        if (p_.out_dtype == DType::f32)
            each([&](long long at, float a, float b) { store_pair<DType::f32>(p_.out, at, a, b); });
        else
            each([&](long long at, float a, float b) {
                store_pair(p_.out, p_.out_dtype, at, a, b);
            });
    }

    // Trading pairs between lanes for wider stores lost: a short call comes here once, and eight
    // instructions of cold code cost as much as a store. So there are no branches inside, either.
    __device__ void store_rows(const Item& item, const float (&sums)[2][kSums]) {
        const int column = half_ * 256 + lane_ % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_ * 16 + lane_ / 4 + 8 * half;
            if (row >= item.columns) continue;
            const auto each = [&](auto store) {
#pragma unroll
                for (int j = 0; j < 32; ++j)
                    store(8 * j, sums[j / 16][j % 16 * 4 + 2 * half],
                          sums[j / 16][j % 16 * 4 + 2 * half + 1]);
            };
            const float factor = shared_.final_factor[row];
            const bool partial = item.slot >= 0;
            const long long place = partial ? static_cast<long long>(item.slot) * kBlockRows + row
                                            : static_cast<long long>(item.packed_first + row);
            const long long to = place * kLatent + column;
            std::byte* out = partial ? reinterpret_cast<std::byte*>(p_.partial) : p_.out;
            if (partial || p_.out_dtype == DType::f32)
                each([&](int at, float a, float b) {
                    store_pair<DType::f32>(out, to + at, a * factor, b * factor);
                });
            else if (p_.out_dtype == DType::bf16)
                each([&](int at, float a, float b) {
                    store_pair<DType::bf16>(out, to + at, a * factor, b * factor);
                });
            else
                each([&](int at, float a, float b) {
                    store_pair<DType::f16>(out, to + at, a * factor, b * factor);
                });
        }
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int half_, warp_, lane_;
    // Sixteen rows are two warps' of each half. The halves take different ones, so that all four
    // schedulers have work: what lies before the weights is the other warps' operand.
    const int turn_;
    const int row_;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t weights_phase_ = 0, final_phase_ = 0;
};

}  // namespace espalier::mla::cuda
