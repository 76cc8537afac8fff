// SPDX-License-Identifier: Apache-2.0
// Random weights made on the GPU, in managed memory: any reader, the GPU's packing or the
// host, finds them where a mapped file would have them.
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/cuda_error.hpp"
#include "base/cuda_memory.hpp"
#include "checkpoint/gpu_weights.hpp"
#include "checkpoint/synthetic.hpp"
#include "checkpoint/synthetic_rule.hpp"

namespace espalier::checkpoint {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2048;  // each goes over a tensor in strides of all

template <typename Element, typename Value>
__global__ void fill(Element* out, std::uint64_t count, Value value) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
    for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += stride)
        out[i] = value(i);
}

struct Number32 {
    Affine affine;
    std::uint64_t start;
    __device__ float operator()(std::uint64_t i) const {
        return synthetic_number(affine, start, i);
    }
};
struct Number16 : Number32 {
    __device__ Fp16 operator()(std::uint64_t i) const { return to_fp16(Number32::operator()(i)); }
};
struct NumberB16 : Number32 {
    __device__ Bf16 operator()(std::uint64_t i) const { return to_bf16(Number32::operator()(i)); }
};
struct Number8 : Number32 {
    __device__ E4m3 operator()(std::uint64_t i) const { return to_e4m3(Number32::operator()(i)); }
};
template <typename Element>
struct Code {
    std::uint64_t start;
    __device__ Element operator()(std::uint64_t i) const {
        return synthetic_code<Element>(start, i);
    }
};

template <typename Element, typename Value>
Expected<void> launch(std::byte* out, std::uint64_t count, const Value& value) {
    fill<<<kBlocks, kThreads>>>(reinterpret_cast<Element*>(out), count, value);
    return checked(cudaGetLastError(), "filling weights");
}

Expected<void> fill_tensor(const TensorSpec& spec, std::uint64_t seed, std::byte* out) {
    const std::uint64_t count = spec.elements();
    const std::uint64_t start = synthetic_start(spec, seed);
    switch (spec.type) {
        case StoredType::f32:
            return launch<float>(out, count, Number32{affine_of(spec), start});
        case StoredType::f16:
            return launch<Fp16>(out, count, Number16{{affine_of(spec), start}});
        case StoredType::bf16:
            return launch<Bf16>(out, count, NumberB16{{affine_of(spec), start}});
        case StoredType::e4m3:
            return launch<E4m3>(out, count, Number8{{affine_of(spec), start}});
        case StoredType::i32:
            return launch<std::uint32_t>(out, count, Code<std::uint32_t>{start});
        case StoredType::i8:
        case StoredType::u8:
            return launch<std::uint8_t>(out, count, Code<std::uint8_t>{start});
        default:
            CHECK(false, "tensor '{}' of type {} has no generator", spec.name, name_of(spec.type));
    }
}

struct Managed {
    std::byte* data = nullptr;
    std::shared_ptr<void> owner;
};

Expected<Managed> allocate(std::uint64_t bytes) {
    ESPALIER_ASSIGN_OR_RETURN(const CudaMemory memory, cuda_memory());
    if (bytes > static_cast<std::uint64_t>(memory.free))
        return fail(ErrorKind::exhausted, "random weights of {} bytes: the GPU has {} free", bytes,
                    memory.free);
    void* block = nullptr;
    ESPALIER_RETURN_IF_ERROR(
        checked(cudaMallocManaged(&block, bytes), "memory for random weights"));
    Managed made{static_cast<std::byte*>(block), {block, [](void* p) { cudaFree(p); }}};
    // Without this every page is a fault of the kernel that writes it first.
    int device = 0;
    ESPALIER_RETURN_IF_ERROR(checked(cudaGetDevice(&device), "the current GPU"));
    const cudaMemLocation here{.type = cudaMemLocationTypeDevice, .id = device};
    ESPALIER_RETURN_IF_ERROR(
        checked(cudaMemPrefetchAsync(block, bytes, here, 0, nullptr), "memory for random weights"));
    return made;
}

}  // namespace

Expected<MappedFile> fill_on_gpu(const Shard& shard, std::uint64_t seed) {
    const std::string head = safetensors_head(shard, 256);
    std::uint64_t bytes = head.size();
    for (const TensorSpec& spec : shard.tensors) bytes += spec.bytes();
    ESPALIER_ASSIGN_OR_RETURN(Managed memory, allocate(bytes));

    std::byte* next = memory.data + head.size();
    for (const TensorSpec& spec : shard.tensors) {
        if (is_random(spec)) ESPALIER_RETURN_IF_ERROR(fill_tensor(spec, seed, next));
        next += spec.bytes();
    }
    ESPALIER_RETURN_IF_ERROR(checked(cudaDeviceSynchronize(), "filling weights"));

    std::memcpy(memory.data, head.data(), head.size());
    next = memory.data + head.size();
    for (const TensorSpec& spec : shard.tensors) {
        if (!is_random(spec)) synthetic_values(spec, seed, 0, spec.elements(), next);
        next += spec.bytes();
    }
    return MappedFile::over(shard.file, {memory.data, static_cast<std::size_t>(bytes)},
                            std::move(memory.owner));
}

}  // namespace espalier::checkpoint
