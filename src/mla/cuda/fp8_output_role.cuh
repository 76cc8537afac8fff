// SPDX-License-Identifier: Apache-2.0
// The two output warpgroups of FP8 caches: each owns 256 of the 512 value columns, Oᵀ += Vᵀ·Pᵀ,
// with Vᵀ read from the key tile itself by transposed loads and widened in registers.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat, int kN>
class Fp8OutputHalf {
    using T = Traits<kFormat, kN>;
    using Shared = SharedLayout<kFormat, kN>;
    static constexpr int kSums = kN / 2;
    static constexpr int kColumns = kN / 4;

  public:
    __device__ Fp8OutputHalf(const AbsorbedParams& p, Shared& shared, int half)
        : p_(p),
          shared_(shared),
          half_(half),
          warp_(threadIdx.x % 128 / 32),
          lane_(threadIdx.x % 32),
          group_(lane_ / 4),
          pair_(lane_ % 4) {}

    __device__ void run() {
        float out[4][kSums];
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return;
#pragma unroll
            for (int block = 0; block < 4; ++block)
#pragma unroll
                for (int i = 0; i < kSums; ++i) out[block][i] = 0.0f;
            for (int tiles = uniform(item.tile_end - item.tile_begin); tiles > 0; --tiles)
                add_tile(out);
            finish(item, out);
            __syncwarp();
            if (lane_ == 0) arrive(&shared_.item_free[items_.index]);
            items_.advance();
        }
    }

  private:
    __device__ void add_tile(float (&out)[4][kSums]) {
        wait(&shared_.keys_full[keys_.index][0], keys_.phase);  // makes the keys visible here
        wait(&shared_.weights_full, weights_phase_);
        weights_phase_ ^= 1;
        if (uniform(shared_.rescale[0]) != 0) rescale(out);
        const std::uint32_t keys = shared_address(shared_.keys[keys_.index]);
        multiply(keys, out);
        __syncwarp();
        if (lane_ == 0) {
            arrive(&shared_.keys_free[keys_.index]);
            arrive(&shared_.weights_free);
        }
        keys_.advance();
    }

    __device__ void rescale(float (&out)[4][kSums]) {
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
            const float2 factor =
                *reinterpret_cast<const float2*>(&shared_.factor[j * 8 + pair_ * 2]);
#pragma unroll
            for (int block = 0; block < 4; ++block) {
                out[block][4 * j] *= factor.x;
                out[block][4 * j + 1] *= factor.y;
                out[block][4 * j + 2] *= factor.x;
                out[block][4 * j + 3] *= factor.y;
            }
        }
    }

    // Four 8×8 loads bring 32 keys × 16 columns; bytes of two neighbouring columns are parted so
    // that columns 2g and 2g + 1 are the product's rows g and g + 8.
    __device__ void unpack(std::uint32_t address, std::uint32_t (&a)[2][4]) {
        std::uint32_t r[4];
        load_matrices_transposed(r, address);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t parted = __byte_perm(r[i], 0, 0x3120);
            a[i / 2][i % 2 * 2] = widen_e4m3(static_cast<std::uint16_t>(parted));
            a[i / 2][i % 2 * 2 + 1] = widen_e4m3(static_cast<std::uint16_t>(parted >> 16));
        }
    }

    __device__ void multiply(std::uint32_t keys, float (&out)[4][kSums]) {
        const std::uint32_t weights = shared_address(shared_.weights);
        std::uint32_t a[2][2][4];
#pragma unroll
        for (int block = 0; block < 4; ++block) hold(out[block]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int block = i % 4;
            const int key = i / 4 * 32 + lane_;
            const int first = half_ * 256 + block * 64 + warp_ * 16;  // column
            const int chunk = first % 128 / 16;
            unpack(keys + first / 128 * T::kBlockBytes + key * 128 + ((chunk ^ (key & 7)) << 4),
                   a[i % 2]);
            wgmma_begin();
#pragma unroll
            for (int step = 0; step < 2; ++step)
                wgmma(out[block], a[i % 2][step], descriptor(weights + (i / 4 * 2 + step) * 32), 1);
            wgmma_commit();
            wgmma_wait<1>();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int block = 0; block < 4; ++block) hold(out[block]);
    }

    // --- the end of an item
    // -------------------------------------------------------------------------
    __device__ void finish(const Item& item, float (&out)[4][kSums]) {
        wait(&shared_.final_full, final_phase_);
        final_phase_ ^= 1;
        store(item, out);
        __syncwarp();
        if (lane_ == 0) arrive(&shared_.final_free);
    }

    __device__ void store(const Item& item, const float (&out)[4][kSums]) {
#pragma unroll
        for (int j = 0; j < kN / 8; ++j)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int row = j * 8 + pair_ * 2 + odd;
                if (row >= item.columns) continue;
                const float factor = shared_.final_factor[row];
#pragma unroll
                for (int block = 0; block < 4; ++block) {
                    const int column = half_ * 256 + block * 64 + warp_ * 16 + 2 * group_;
                    const float a = out[block][4 * j + odd];
                    const float b = out[block][4 * j + 2 + odd];
                    if (item.slot >= 0)
                        *reinterpret_cast<float2*>(
                            p_.partial + (static_cast<long long>(item.slot) * kN + row) * kLatent +
                            column) = float2{a, b};
                    else
                        store_pair(
                            p_.out, p_.out_dtype,
                            static_cast<long long>(item.packed_first + row) * kLatent + column,
                            a * factor, b * factor);
                }
            }
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int half_, warp_, lane_, group_, pair_;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t weights_phase_ = 0, final_phase_ = 0;
};

}  // namespace espalier::mla::cuda
