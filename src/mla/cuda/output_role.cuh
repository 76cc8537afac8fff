// SPDX-License-Identifier: Apache-2.0
// The two output warpgroups: each owns 256 of the 512 value columns of 64 packed
// rows, O += P·V, with V a transposed view of the key tile. A thread has rows g and g + 8 of its
// warp's sixteen and columns 8j + 2c, 8j + 2c + 1.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat>
class OutputHalf {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr int kSums = 64;  // of 128 columns; two such pieces

  public:
    __device__ OutputHalf(const AbsorbedParams& p, Shared& shared, int half)
        : p_(p),
          shared_(shared),
          half_(half),
          warp_(threadIdx.x % 128 / 32),
          lane_(threadIdx.x % 32),
          row_(warp_ * 16 + lane_ / 4) {}

    __device__ void run() {
        float out[2][kSums];
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return;
#pragma unroll
            for (int i = 0; i < kSums; ++i) out[0][i] = out[1][i] = 0.0f;
            for (int tiles = uniform(item.tile_end - item.tile_begin); tiles > 0; --tiles)
                add_tile(out);
            finish(item, out);
            arrive_as_warp(&shared_.item_free[items_.index]);
            items_.advance();
        }
    }

  private:
    __device__ void add_tile(float (&out)[2][kSums]) {
        wait(&shared_.keys_full[keys_.index], keys_.phase);  // makes them visible to this thread
        wait(&shared_.weights_full[0], weights_phase_);
        weights_phase_ ^= 1;
        if (uniform(shared_.rescale[warp_]) != 0) rescale(out);
        const std::uint32_t keys = shared_address(shared_.keys[keys_.index]);
        const std::uint64_t weights = descriptor(shared_address(shared_.weights[0]));
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
        const float lower = shared_.factor[row_ + 8];
#pragma unroll
        for (int i = 0; i < 2 * kSums; i += 4) {
            float* quad = &out[i / kSums][i % kSums];
            quad[0] *= upper;
            quad[1] *= upper;
            quad[2] *= lower;
            quad[3] *= lower;
        }
    }

    __device__ void finish(const Item& item, const float (&out)[2][kSums]) {
        wait(&shared_.final_full, final_phase_);
        final_phase_ ^= 1;
        if (warp_ * 16 < item.columns) store_rows(item, out);
        arrive_as_warp(&shared_.final_free);
    }

    // Trading pairs between lanes for wider stores lost: a short call comes here once, and eight
    // instructions of cold code cost as much as a store. So there are no branches inside, either.
    __device__ void store_rows(const Item& item, const float (&sums)[2][kSums]) {
        const int column = half_ * 256 + lane_ % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_ + 8 * half;
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
    const int half_, warp_, lane_, row_;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t weights_phase_ = 0, final_phase_ = 0;
};

}  // namespace espalier::mla::cuda
