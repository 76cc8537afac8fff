// SPDX-License-Identifier: Apache-2.0
// The CPU's implementation of the contract: chooses tile kernels by variant, cache and weights.
// Bits are row- and path-invariant always, within one variant.
#include <algorithm>

#include "mla/checks.hpp"
#include "mla/cpu/entries.hpp"
#include "mla/cpu/up_weights.hpp"
#include "mla/storage.hpp"

namespace espalier::mla {
namespace {

class CpuKernels final : public Kernels {
  public:
    CpuKernels(const cpu::TileKernels& f32, const cpu::TileKernels& bf16)
        : f32_(f32), bf16_(bf16) {}

    Expected<void> absorbed(OpContext& context, const AbsorbedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_compiled_dims(kCpuDims, call.kv.dims));
        ESPALIER_RETURN_IF_ERROR(check_absorbed_arrays(call));
        cpu::absorbed(context, dots(call.kv.format) ? bf16_ : f32_, call);
        return {};
    }

    Expected<void> decompressed(OpContext& context, const DecompressedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_decompressed_arrays(call));
        ESPALIER_RETURN_IF_ERROR(check_compiled_dims(kCpuDims, call.kv.dims, call.head_dims()));
        for (const linalg::WeightView& half : {call.up_key, call.up_value})
            if (half.layout != linalg::WeightLayout::panels)
                return fail(ErrorKind::unsupported,
                            "decompressed attention on the CPU with weights as {}: panels are "
                            "possible",
                            name_of(half.layout));
        const bool bf16 = dots(call.kv.format) && cpu::multiplies(bf16_, call.up_key.format) &&
                          cpu::multiplies(bf16_, call.up_value.format);
        cpu::decompressed(context, bf16 ? bf16_ : f32_, call);
        return {};
    }

    Expected<void> append(OpContext& context, const AppendCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_append_arrays(call));
        constexpr std::int64_t kTokensPerTask = 16;
        pool_of(context).run(
            (call.tokens + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task, int) {
                const std::int64_t end = std::min(call.tokens, (task + 1) * kTokensPerTask);
                for (std::int64_t token = task * kTokensPerTask; token < end; ++token)
                    append_token(call, token);
            });
        return {};
    }

    Expected<void> compact(OpContext&, const CompactCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_compact_arrays(call));
        for (std::int64_t i = 0; i < call.moves; ++i)
            move_slot(call.kv, call.source[i], call.destination[i]);
        return {};
    }

    Expected<void> select(OpContext& context, const SelectCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_select_arrays(call));
        cpu::select(context, f32_, call);
        return {};
    }
    Expected<void> check_indexer() const override { return {}; }

    Expected<void> check_dims(const KeyDims& keys, const HeadDims& heads) const override {
        return check_compiled_dims(kCpuDims, keys, heads);
    }

    std::size_t scratch_bytes(const Capacities& most) const override {
        std::int64_t bytes = 0;
        for (const cpu::TileKernels* kernels : {&f32_, &bf16_})
            bytes =
                std::max({bytes, cpu::absorbed_scratch(*kernels, most.workers),
                          cpu::decompressed_scratch(*kernels, most), cpu::select_scratch(most)});
        return static_cast<std::size_t>(bytes);
    }

  private:
    // Caches whose numbers bf16 holds exactly.
    static bool dots(KvFormat format) {
        return format == KvFormat::bf16 || format == KvFormat::fp8_tensor ||
               format == KvFormat::fp8_token;
    }
    static void append_token(const AppendCall& call, std::int64_t token) {
        const bool flushed =
            call.slot[token] >= 0 &&
            write_slot(call.kv, call.slot[token], call.latent + token * call.latent_stride,
                       call.rope + token * call.rope_stride);
        if (flushed && call.nonfinite != nullptr) call.nonfinite[token] = 1;
    }

    const cpu::TileKernels& f32_;  // every cache
    const cpu::TileKernels&
        bf16_;  // bf16 and e4m3 caches; the same kernels where there are no dot products
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_kernels(CpuVariant variant) {
    CHECK(variant <= best_cpu_variant(), "this machine has no {}", name_of(variant));
#if defined(__x86_64__)
    switch (variant) {
        case CpuVariant::avx512_bf16:
            return std::make_unique<CpuKernels>(cpu::kAvx512Tiles, cpu::kAvx512Bf16Tiles);
        case CpuVariant::avx512:
            return std::make_unique<CpuKernels>(cpu::kAvx512Tiles, cpu::kAvx512Tiles);
        case CpuVariant::avx2:
            return std::make_unique<CpuKernels>(cpu::kAvx2Tiles, cpu::kAvx2Tiles);
        case CpuVariant::portable:
            break;
    }
#endif
    return std::make_unique<CpuKernels>(cpu::kPortableTiles, cpu::kPortableTiles);
}

}  // namespace espalier::mla
