// SPDX-License-Identifier: Apache-2.0
// Packs weights on the GPU: a source goes there as it is stored, is laid out in rows (turned round
// if it is stored transposed), and from there in the order of fragments.hpp.
#include <algorithm>
#include <vector>

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/problem.hpp"
#include "linalg/cuda/product.hpp"

namespace espalier::linalg::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t items) {
    return static_cast<unsigned>(std::min<std::int64_t>(divide_up(items, kThreads), 1 << 20));
}

__device__ std::int64_t first_item() {
    return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ std::int64_t item_stride() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

// to[n · pitch + k] = from[k · outputs + n]
template <typename T>
__global__ void turn_kernel(const T* from, T* to, std::int64_t outputs, std::int64_t inputs,
                            std::int64_t pitch) {
    for (std::int64_t i = first_item(); i < outputs * inputs; i += item_stride())
        to[i / inputs * pitch + i % inputs] = from[i % inputs * outputs + i / inputs];
}

// One 16-byte unit of a chunk per item.
template <bool kGated>
__global__ void bf16_fragments_kernel(const std::uint16_t* rows, uint4* to, std::int64_t n,
                                      std::int64_t k) {
    const std::int64_t chunks = chunks_of(k);
    for (std::int64_t i = first_item(); i < tiles_of(n) * chunks * 256; i += item_stride()) {
        const std::int64_t lane = i % 32, step = i / 32 % 8, chunk = i / 256 % chunks;
        const std::int64_t row = i / 256 / chunks * kTileOutputs + lane / 4;
        const std::int64_t first =
            chunk * kChunkInputs + step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
        std::uint32_t word[4];
        for (int part = 0; part < 4; ++part) {
            const std::int64_t place = row + part % 2 * 8;
            const std::int64_t output = kGated ? gated_row(place, n) : place;
            std::uint32_t bits[2] = {0, 0};
            for (int half = 0; half < 2; ++half) {
                const std::int64_t input = first + part / 2 * 2 + half;
                if (place < n && input < k) bits[half] = rows[output * k + input];
            }
            word[part] = bits[0] | bits[1] << 16;
        }
        to[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

__global__ void e4m3_fragments_kernel(const std::uint8_t* rows, uint4* to, std::int64_t n,
                                      std::int64_t k, int* nan_codes) {
    const std::int64_t chunks = chunks_of(k);
    bool nan = false;
    for (std::int64_t i = first_item(); i < tiles_of(n) * chunks * 128; i += item_stride()) {
        const std::int64_t lane = i % 32, pair = i / 32 % 4, chunk = i / 128 % chunks;
        const std::int64_t row = i / 128 / chunks * kTileOutputs + lane / 4;
        const std::int64_t first = chunk * kChunkInputs + pair * 32 + lane % 4 * 8;
        std::uint32_t word[4] = {0, 0, 0, 0};
        for (int input = 0; input < 8; ++input) {
            std::uint32_t code[2] = {0, 0};
            for (int half = 0; half < 2; ++half)
                if (row + half * 8 < n && first + input < k)
                    code[half] = rows[(row + half * 8) * k + first + input];
            nan |= (code[0] & 0x7fu) == 0x7fu || (code[1] & 0x7fu) == 0x7fu;
            word[input / 2] |= join_codes(code[0], code[1]) << input % 2 * 16;
        }
        to[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
    if (nan) *nan_codes = 1;
}

Expected<void> checked(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return {};
    return fail(ErrorKind::io, "CUDA refused {}: {}", what, cudaGetErrorString(status));
}

Expected<void> check_format(const WeightView& shape) {
    const WeightFormat& format = shape.format;
    const bool blocks = format.code == WeightCode::e4m3 && format.scale == ScaleType::f32 &&
                        format.group_k == kChunkInputs;
    if (!blocks && (format.code == WeightCode::e4m3 || format.scaled()))
        return fail(ErrorKind::unsupported,
                    "CUDA products: {} weights with scales of {} × {} (e4m3 with scales of … × {})",
                    name_of(format.code), format.group_n, format.group_k, kChunkInputs);
    if (in_fragments(format.code) && shape.k > kMostInputs)
        return fail(ErrorKind::unsupported, "CUDA products: weights with {} inputs, at most {}",
                    shape.k, kMostInputs);
    return {};
}

class Packer {
  public:
    Packer(Device& device, const WeightView& shape)
        : device_(device),
          stream_(static_cast<cudaStream_t>(device.stream())),
          shape_(shape),
          element_(shape.format.bytes(1)) {}

    Expected<Weight> run(WeightStack stack) {
        ESPALIER_RETURN_IF_ERROR(allocate(stack));
        for (std::size_t index = 0; index < stack.size(); ++index)
            ESPALIER_RETURN_IF_ERROR(pack_matrix(stack[index], static_cast<std::int64_t>(index)));
        int nan_codes = 0;
        ESPALIER_RETURN_IF_ERROR(
            device_.download(stream_, &nan_codes, flag_.data(), sizeof(nan_codes)));
        if (nan_codes != 0)
            return fail(ErrorKind::invalid, "e4m3 weights [{}, {}] with NaN codes", shape_.n,
                        shape_.k);
        ESPALIER_ASSIGN_OR_RETURN(Buffer scales, upload_scales(stack));
        return Weight(std::move(data_), std::move(scales), shape_);
    }

  private:
    Expected<void> allocate(WeightStack stack) {
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t outputs,
                                  checked_product(tiles_of(shape_.n), kTileOutputs));
        const bool fragments = in_fragments(shape_.format.code);
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t weights,
                                  fragments
                                      ? checked_product(outputs, chunks_of(shape_.k) * kChunkInputs)
                                      : checked_product(shape_.n, padded_row(shape_.k)));
        ESPALIER_ASSIGN_OR_RETURN(shape_.matrix_bytes, checked_product(weights, element_));
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t bytes,
                                  checked_product(shape_.count, shape_.matrix_bytes));
        ESPALIER_ASSIGN_OR_RETURN(data_, device_.allocate(static_cast<std::size_t>(bytes)));
        ESPALIER_ASSIGN_OR_RETURN(flag_, device_.allocate(sizeof(int)));
        if (fragments) {
            ESPALIER_ASSIGN_OR_RETURN(
                rows_, device_.allocate(static_cast<std::size_t>(shape_.n * shape_.k * element_)));
        }
        std::int64_t transposed = 0;
        for (const std::span<const WeightSource>& sources : stack)
            for (const WeightSource& source : sources)
                if (source.transposed) transposed = std::max(transposed, source.n * source.k);
        ESPALIER_ASSIGN_OR_RETURN(
            stored_, device_.allocate(static_cast<std::size_t>(transposed * element_)));
        return {};
    }

    Expected<void> pack_matrix(std::span<const WeightSource> sources, std::int64_t index) {
        std::byte* to = data_.data() + index * shape_.matrix_bytes;
        const bool fragments = in_fragments(shape_.format.code);
        const std::int64_t pitch = fragments ? shape_.k : padded_row(shape_.k);
        std::byte* row = fragments ? rows_.data() : to;
        for (const WeightSource& source : sources) {
            ESPALIER_RETURN_IF_ERROR(lay_out(source, row, pitch));
            row += source.n * pitch * element_;
        }
        const std::int64_t units = tiles_of(shape_.n) * chunks_of(shape_.k);
        auto* unit = reinterpret_cast<uint4*>(to);
        if (shape_.layout == WeightLayout::gated_fragments)
            bf16_fragments<true>(unit, units);
        else if (shape_.format.code == WeightCode::bf16)
            bf16_fragments<false>(unit, units);
        else if (shape_.format.code == WeightCode::e4m3)
            e4m3_fragments_kernel<<<blocks_for(units * 128), kThreads, 0, stream_>>>(
                reinterpret_cast<const std::uint8_t*>(rows_.data()), unit, shape_.n, shape_.k,
                reinterpret_cast<int*>(flag_.data()));
        return checked(cudaGetLastError(), "packing weights");
    }

    template <bool kGated>
    void bf16_fragments(uint4* to, std::int64_t units) {
        bf16_fragments_kernel<kGated><<<blocks_for(units * 256), kThreads, 0, stream_>>>(
            reinterpret_cast<const std::uint16_t*>(rows_.data()), to, shape_.n, shape_.k);
    }

    // A source as rows, `pitch` elements apart.
    Expected<void> lay_out(const WeightSource& source, std::byte* to, std::int64_t pitch) {
        if (!source.transposed) return copy(source, to, pitch, source.n, source.k);
        ESPALIER_RETURN_IF_ERROR(copy(source, stored_.data(), source.n, source.k, source.n));
        if (element_ == 4)
            turn<std::uint32_t>(source, to, pitch);
        else if (element_ == 2)
            turn<std::uint16_t>(source, to, pitch);
        else
            turn<std::uint8_t>(source, to, pitch);
        return checked(cudaGetLastError(), "turning weights");
    }

    template <typename T>
    void turn(const WeightSource& source, std::byte* to, std::int64_t pitch) {
        turn_kernel<T><<<blocks_for(source.n * source.k), kThreads, 0, stream_>>>(
            reinterpret_cast<const T*>(stored_.data()), reinterpret_cast<T*>(to), source.n,
            source.k, pitch);
    }

    // Stored rows; without gaps in one piece, which is the fast way from pageable memory.
    Expected<void> copy(const WeightSource& source, std::byte* to, std::int64_t pitch,
                        std::int64_t height, std::int64_t width) {
        const auto bytes = [&](std::int64_t elements) {
            return static_cast<std::size_t>(elements * element_);
        };
        if (source.row_stride == width && pitch == width)
            return checked(
                cudaMemcpyAsync(to, source.data, bytes(height * width), cudaMemcpyDefault, stream_),
                "a copy of weights");
        return checked(
            cudaMemcpy2DAsync(to, bytes(pitch), source.data, bytes(source.row_stride), bytes(width),
                              static_cast<std::size_t>(height), cudaMemcpyDefault, stream_),
            "a copy of weights");
    }

    Expected<Buffer> upload_scales(WeightStack stack) {
        if (!shape_.format.scaled()) return Buffer();
        const bool shared = std::all_of(stack.begin(), stack.end(), [](const auto& sources) {
            std::int64_t first = 0;  // output of the matrix at which the source begins
            for (const WeightSource& source : sources) {
                // A new group of scales may begin only where a tile does.
                if (first % kTileOutputs != 0 || grid_origin(source).n % kTileOutputs != 0 ||
                    source.format.group_n % kTileOutputs != 0)
                    return false;
                first += source.n;
            }
            return true;
        });
        const std::int64_t outputs = shared ? 1 : kTileOutputs;
        shape_.scale_bytes = tiles_of(shape_.n) * chunks_of(shape_.k) * outputs * 4;
        ESPALIER_ASSIGN_OR_RETURN(
            Buffer scales,
            device_.allocate(static_cast<std::size_t>(shape_.count * shape_.scale_bytes)));
        for (std::size_t index = 0; index < stack.size(); ++index) {
            const std::vector<float> values = scales_of(stack[index], outputs);
            ESPALIER_RETURN_IF_ERROR(device_.upload(
                stream_, scales.data() + static_cast<std::int64_t>(index) * shape_.scale_bytes,
                values.data(), values.size() * sizeof(float)));
        }
        ESPALIER_RETURN_IF_ERROR(device_.synchronize(stream_));
        return scales;
    }

    std::vector<float> scales_of(std::span<const WeightSource> sources, std::int64_t outputs) {
        const std::int64_t chunks = chunks_of(shape_.k);
        std::vector<float> values(static_cast<std::size_t>(shape_.scale_bytes) / sizeof(float));
        std::int64_t output = 0;
        for (const WeightSource& source : sources)
            for (std::int64_t n = 0; n < source.n; ++n, ++output) {
                if (outputs == 1 && output % kTileOutputs != 0) continue;
                for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
                    values[static_cast<std::size_t>(
                        (output / kTileOutputs * chunks + chunk) * outputs + output % outputs)] =
                        scale_of(source, n, chunk);
            }
        return values;
    }

    Device& device_;
    cudaStream_t stream_;
    WeightView shape_;
    std::int64_t element_;
    Buffer data_;
    Buffer rows_;    // one matrix in rows
    Buffer stored_;  // one transposed source as it is stored
    Buffer flag_;    // whether a NaN code was seen
};

}  // namespace

Expected<Weight> pack(Device& device, WeightStack stack) {
    ESPALIER_ASSIGN_OR_RETURN(WeightView shape, common_shape(stack));
    shape.layout = WeightLayout::fragments;
    ESPALIER_RETURN_IF_ERROR(check_format(shape));
    return Packer(device, shape).run(stack);
}

Expected<Weight> pack_gated(Device& device, WeightStack stack) {
    ESPALIER_ASSIGN_OR_RETURN(WeightView shape, common_shape(stack));
    if (shape.format.code != WeightCode::bf16 || shape.n % kTileOutputs != 0)
        return pack(device, stack);
    shape.layout = WeightLayout::gated_fragments;
    ESPALIER_RETURN_IF_ERROR(check_format(shape));
    return Packer(device, shape).run(stack);
}

}  // namespace espalier::linalg::cuda
