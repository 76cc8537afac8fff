// SPDX-License-Identifier: Apache-2.0
// CUDA's implementation of the contract: checks the words of a call and hands it to its kernel, of
// the device's family. GPUs other than Hopper (compute capability 9.0) are refused when the kernels
// are made; there, the portable family runs where a device's limits say so.
#include <algorithm>

#include "mla/checks.hpp"
#include "mla/cuda/absorbed/absorbed.hpp"
#include "mla/cuda/entries.hpp"
#include "mla/cuda/launch.hpp"

namespace espalier::mla {
namespace {

class CudaKernels final : public Kernels {
  public:
    explicit CudaKernels(const DeviceFacts& facts) : facts_(facts) {}

    Expected<void> absorbed(OpContext& context, const AbsorbedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_arguments(call));
        return cuda::absorbed(context, call, facts_);
    }

    Expected<void> plan(OpContext& context, const AbsorbedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_arguments(call));
        if (call.plan == nullptr) return fail(ErrorKind::invalid, "a plan without memory for it");
        return cuda::absorbed_plan(context, call, facts_);
    }

    std::size_t plan_bytes(const Capacities& most) const override {
        return cuda::absorbed_plan_bytes(most, facts_);
    }

    Expected<void> decompressed(OpContext& context, const DecompressedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_decompressed_arguments(call));
        ESPALIER_RETURN_IF_ERROR(check_compiled_dims(kCudaDims, call.kv.dims, call.head_dims()));
        ESPALIER_RETURN_IF_ERROR(check_cuda_pages(call.kv));
        ESPALIER_RETURN_IF_ERROR(check_cuda_address(call.q, "q"));
        ESPALIER_RETURN_IF_ERROR(check_cuda_address(call.out, "out"));
        ESPALIER_RETURN_IF_ERROR(check_up_rows(call));
        return cuda::decompressed(context, call, facts_);
    }

    Expected<void> append(OpContext& context, const AppendCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_append_arguments(call));
        ESPALIER_RETURN_IF_ERROR(check_compiled_dims(kCudaDims, call.kv.dims));
        ESPALIER_RETURN_IF_ERROR(check_cuda_pages(call.kv));
        return cuda::append(context, call);
    }

    Expected<void> compact(OpContext& context, const CompactCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_compact_arguments(call));
        ESPALIER_RETURN_IF_ERROR(check_cuda_pages(call.kv));
        ESPALIER_RETURN_IF_ERROR(check_cuda_slots(call.kv));
        return cuda::compact(context, call);
    }

    Expected<void> check_dims(const KeyDims& keys, const HeadDims& heads) const override {
        return check_compiled_dims(kCudaDims, keys, heads);
    }

    // Scratch; that of the absorbed entry's own plan is part of it.
    std::size_t scratch_bytes(const Capacities& most) const override {
        const std::size_t absorbed = cuda::absorbed_scratch(most, facts_);
        return most.decompressed ? std::max(absorbed, cuda::decompressed_scratch(most)) : absorbed;
    }

  private:
    // Both halves as a checkpoint has them, head by head: key rows, then value rows.
    static Expected<void> check_up_rows(const DecompressedCall& call) {
        const std::int64_t keys = call.head_dims().nope * kLatent * 2;  // bytes
        const std::int64_t head = call.head_dims().outputs() * kLatent * 2;
        if (call.head_dims() != HeadDims{} && call.q_dtype != DType::bf16)
            return fail(ErrorKind::unsupported,
                        "decompressed attention of {} queries with heads of {} and {} columns",
                        name_of(call.q_dtype), call.head_dims().query(), call.head_dims().value);
        for (const linalg::WeightView& half : {call.up_key, call.up_value})
            if (half.format != WeightFormat{.code = WeightCode::bf16} ||
                half.layout != linalg::WeightLayout::rows || half.matrix_bytes != head)
                return fail(ErrorKind::unsupported,
                            "decompressed attention on CUDA with {} weights as {}, {} bytes apart: "
                            "bf16 rows, {} bytes apart, are possible",
                            name_of(half.format.code), name_of(half.layout), half.matrix_bytes,
                            head);
        if (call.up_value.data != call.up_key.data + keys)
            return fail(ErrorKind::unsupported,
                        "decompressed attention on CUDA with up_value {} bytes behind up_key, {} "
                        "are possible",
                        call.up_value.data - call.up_key.data, keys);
        return check_cuda_address(call.up_key.data, "up_key");
    }
    static Expected<void> check_arguments(const AbsorbedCall& call) {
        ESPALIER_RETURN_IF_ERROR(check_absorbed_arguments(call));
        ESPALIER_RETURN_IF_ERROR(check_compiled_dims(kCudaDims, call.kv.dims));
        ESPALIER_RETURN_IF_ERROR(check_cuda_pages(call.kv));
        ESPALIER_RETURN_IF_ERROR(check_cuda_address(call.q, "q"));
        ESPALIER_RETURN_IF_ERROR(check_cuda_address(call.out, "out"));
        return check_cuda_address(call.plan, "the plan");
    }

    DeviceFacts facts_;
};

}  // namespace

Expected<void> append_raw(OpContext& context, const AppendCall& call, const RawKeys& keys) {
    AppendCall known = call;  // what the kernel makes itself counts as there
    known.latent = known.rope = keys.kv_a;
    ESPALIER_RETURN_IF_ERROR(check_append_arguments(known));
    ESPALIER_RETURN_IF_ERROR(check_compiled_dims(kCudaDims, call.kv.dims));
    ESPALIER_RETURN_IF_ERROR(check_cuda_pages(call.kv));
    const BesideNorm& beside = keys.beside;
    if (beside.x.data != nullptr)
        CHECK(beside.x.dtype == DType::f32 && beside.out.dtype == DType::bf16 &&
                  beside.x.rows == call.tokens && beside.out.rows == call.tokens &&
                  beside.out.cols == beside.x.cols,
              "norms of {} rows of {} to {} beside {} keys", beside.x.rows, beside.x.cols,
              beside.out.cols, call.tokens);
    return cuda::append_raw(context, call, keys);
}

Expected<std::unique_ptr<Kernels>> make_cuda_kernels(const Device& device) {
    const DeviceFacts& facts = device.facts();
    if (device.kind() != DeviceKind::cuda || facts.major != 9 || facts.minor != 0)
        return fail(ErrorKind::unsupported,
                    "{} device {} has compute capability {}.{}, the CUDA kernels are for 9.0 "
                    "(Hopper)",
                    device.name(), facts.ordinal, facts.major, facts.minor);
    return std::make_unique<CudaKernels>(facts);
}

}  // namespace espalier::mla
