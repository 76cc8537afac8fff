// SPDX-License-Identifier: Apache-2.0
// Packs weights on the GPU: a source goes there as it is stored, is laid out in rows (turned round
// if it is stored transposed), and from there in the order of fragments.hpp.
#include <cmath>
#include <vector>

#include "base/cuda_error.hpp"
#include "linalg/cuda/pack.hpp"
#include "linalg/cuda/product.hpp"

namespace espalier::linalg::cuda {
namespace {

// to[n · pitch + k] = from[k · outputs + n]
template <typename T>
__global__ void turn_kernel(const T* from, T* to, std::int64_t outputs, std::int64_t inputs,
                            std::int64_t pitch) {
    for (std::int64_t i = first_item(); i < outputs * inputs; i += item_stride())
        to[i / inputs * pitch + i % inputs] = from[i % inputs * outputs + i / inputs];
}

bool has_kernels(const WeightFormat& stored) {
    const WeightFormat packed = packed_format(stored);
    switch (stored.code) {
        case WeightCode::e4m3:
            return packed.scale == ScaleType::f32 && packed.group_k == kChunkInputs;
        case WeightCode::int8:
        case WeightCode::int4:
            return packed.group_n == 1 &&
                   (packed.group_k == 32 || packed.group_k == 64 || packed.group_k == 128) &&
                   stored.scale != ScaleType::e4m3 && stored.scaled();
        case WeightCode::e2m1:
            return stored == kNvfp4;
        default:
            return !stored.scaled();
    }
}

Expected<void> check_format(const WeightView& shape, WeightStack stack) {
    const WeightFormat& stored = stack[0][0].format;
    if (!has_kernels(stored))
        return fail(
            ErrorKind::unsupported,
            "CUDA products: {} weights with scales of {} × {} (e4m3: … × 128; int8, int4: 1 "
            "× 32, 64 or multiples of 128; e2m1: 1 × 16, of e4m3)",
            name_of(stored.code), stored.group_n, stored.group_k);
    if (in_fragments(stored.code) && shape.k > kMostInputs)
        return fail(ErrorKind::unsupported, "CUDA products: weights with {} inputs, at most {}",
                    shape.k, kMostInputs);
    for (const std::span<const WeightSource>& sources : stack)
        for (const WeightSource& source : sources)
            if (in_groups(stored.code) && source.transposed)
                return fail(ErrorKind::unsupported, "CUDA products: {} weights stored by inputs",
                            name_of(stored.code));
    return {};
}

// Row `n` of a source.
struct SourceRow {
    const WeightSource* source;
    std::int64_t n;
};

class Packer {
  public:
    Packer(Device& device, const WeightView& shape)
        : device_(device),
          stream_(static_cast<cudaStream_t>(device.stream())),
          shape_(shape),
          fragments_(in_fragments(shape.format.code)),
          row_bytes_(shape.format.bytes(shape.k)) {}

    Expected<Weight> run(WeightStack stack) {
        ESPALIER_RETURN_IF_ERROR(allocate(stack));
        for (std::size_t index = 0; index < stack.size(); ++index)
            ESPALIER_RETURN_IF_ERROR(pack_matrix(stack[index], static_cast<std::int64_t>(index)));
        int faults = 0;
        ESPALIER_RETURN_IF_ERROR(device_.download(stream_, &faults, faults_.data(), sizeof(int)));
        ESPALIER_ASSIGN_OR_RETURN(Buffer scales, upload_scales(stack, faults));
        if ((faults & kNanCode) != 0)
            return fail(ErrorKind::invalid, "e4m3 weights [{}, {}] with NaN codes", shape_.n,
                        shape_.k);
        if ((faults & kBadScale) != 0)
            return fail(ErrorKind::invalid,
                        "{} weights [{}, {}] with a scale that is no finite number",
                        name_of(shape_.format.code), shape_.n, shape_.k);
        return Weight(std::move(data_), std::move(scales), shape_);
    }

  private:
    Expected<void> allocate(WeightStack stack) {
        ESPALIER_ASSIGN_OR_RETURN(
            shape_.matrix_bytes,
            fragments_ ? checked_product(tiles_of(shape_.n),
                                         chunks_of(shape_.k) * 2 * half_bytes(shape_.format))
                       : checked_product(shape_.n, shape_.format.bytes(padded_row(shape_.k))));
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t bytes,
                                  checked_product(shape_.count, shape_.matrix_bytes));
        std::int64_t turned = 0, scale_bytes = 0;
        for (const std::span<const WeightSource>& sources : stack)
            for (const WeightSource& source : sources) {
                if (source.transposed)
                    turned = std::max(turned, source.format.bytes(source.n * source.k));
                scale_bytes = std::max(scale_bytes, stored_scale_bytes(source));
            }
        ESPALIER_RETURN_IF_ERROR(reserve(data_, bytes));
        ESPALIER_RETURN_IF_ERROR(reserve(faults_, sizeof(int)));
        ESPALIER_RETURN_IF_ERROR(reserve(rows_, fragments_ ? shape_.n * row_bytes_ : 0));
        ESPALIER_RETURN_IF_ERROR(reserve(turned_, turned));
        ESPALIER_RETURN_IF_ERROR(reserve(stored_scales_, scale_bytes));
        return reserve(scales_,
                       scales_inside() ? shape_.n * shape_.scale_groups() * scale_element() : 0);
    }
    Expected<void> reserve(Buffer& buffer, std::int64_t bytes) {
        ESPALIER_ASSIGN_OR_RETURN(buffer, device_.allocate(static_cast<std::size_t>(bytes)));
        return {};
    }

    // Scales of groups lie among the codes.
    bool scales_inside() const {
        return in_groups(shape_.format.code) || shape_.format.code == WeightCode::e2m1;
    }
    std::int64_t scale_element() const {
        return shape_.format.code == WeightCode::e2m1 ? 1 : shape_.scale_width();
    }
    std::int64_t stored_scale_bytes(const WeightSource& source) const {
        if (!scales_inside()) return 0;
        return source.n * source.scale_stride *
               static_cast<std::int64_t>(bytes_of(dtype_of(source.format.scale)));
    }
    int* faults() { return reinterpret_cast<int*>(faults_.data()); }

    Expected<void> pack_matrix(std::span<const WeightSource> sources, std::int64_t index) {
        std::byte* to = data_.data() + index * shape_.matrix_bytes;
        std::byte* row = fragments_ ? rows_.data() : to;
        std::byte* scale = scales_.data();
        const std::int64_t pitch =
            fragments_ ? row_bytes_ : shape_.format.bytes(padded_row(shape_.k));
        for (const WeightSource& source : sources) {
            ESPALIER_RETURN_IF_ERROR(lay_out(source, row, pitch));
            row += source.n * pitch;
            if (!scales_inside()) continue;
            ESPALIER_RETURN_IF_ERROR(lay_out_scales_of(source, scale));
            scale += source.n * shape_.scale_groups() * scale_element();
        }
        if (fragments_)
            lay_out_fragments(stream_,
                              {.rows = rows_.data(),
                               .scales = scales_.data(),
                               .n = shape_.n,
                               .k = shape_.k,
                               .groups = shape_.scale_groups(),
                               .format = shape_.format,
                               .gated = shape_.layout == WeightLayout::gated_fragments},
                              to, faults());
        return checked(cudaGetLastError(), "packing weights");
    }

    Expected<void> lay_out_scales_of(const WeightSource& source, std::byte* to) {
        const std::int64_t bytes = stored_scale_bytes(source);
        ESPALIER_RETURN_IF_ERROR(
            checked(cudaMemcpyAsync(stored_scales_.data(),
                                    source.scales + source.first_row * bytes / source.n,
                                    static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_),
                    "a copy of scales"));
        lay_out_scales(stream_,
                       {.scales = stored_scales_.data(),
                        .type = source.format.scale,
                        .n = source.n,
                        .stride = source.scale_stride,
                        .first = source.first_col,
                        .step = shape_.format.group_k,
                        .length = source.format.group_k,
                        .factor = source.format.tensor_scale ? source.tensor_scale : 1.0f},
                       shape_.format.scale, shape_.scale_groups(), to, faults());
        return {};
    }

    // A source as rows, `pitch` bytes apart.
    Expected<void> lay_out(const WeightSource& source, std::byte* to, std::int64_t pitch) {
        if (!source.transposed) {
            ESPALIER_RETURN_IF_ERROR(copy(source, to, pitch, source.n, row_bytes_));
            if (source.offset_codes)
                flip_bits(stream_, to, source.n * row_bytes_,
                          facts_of(source.format.code).bits == 4 ? 0x88 : 0x80);
            return {};
        }
        const std::int64_t element = source.format.bytes(1);
        ESPALIER_RETURN_IF_ERROR(
            copy(source, turned_.data(), source.n * element, source.k, source.n * element));
        if (element == 4)
            turn<std::uint32_t>(source, to, pitch);
        else if (element == 2)
            turn<std::uint16_t>(source, to, pitch);
        else
            turn<std::uint8_t>(source, to, pitch);
        return checked(cudaGetLastError(), "turning weights");
    }

    template <typename T>
    void turn(const WeightSource& source, std::byte* to, std::int64_t pitch) {
        turn_kernel<T><<<blocks_for(source.n * source.k), kPackThreads, 0, stream_>>>(
            reinterpret_cast<const T*>(turned_.data()), reinterpret_cast<T*>(to), source.n,
            source.k, pitch / static_cast<std::int64_t>(sizeof(T)));
    }

    // Stored rows of `width` bytes; without gaps in one piece, which is the fast way from pageable
    // memory (base/cuda_staging.hpp).
    Expected<void> copy(const WeightSource& source, std::byte* to, std::int64_t pitch,
                        std::int64_t height, std::int64_t width) {
        const std::int64_t stride = source.format.bytes(source.row_stride);
        const auto size = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
        if (stride == width && pitch == width)
            return device_.upload(stream_, to, source.data, size(height * width));
        return checked(cudaMemcpy2DAsync(to, size(pitch), source.data, size(stride), size(width),
                                         size(height), cudaMemcpyDefault, stream_),
                       "a copy of weights");
    }

    // --- scales of 128 inputs, which lie apart --------------------------------------------------
    Expected<Buffer> upload_scales(WeightStack stack, int& faults) {
        if (!in_blocks(shape_.format.code)) return Buffer();
        std::int64_t outputs = 2;
        for (const std::span<const WeightSource>& sources : stack)
            if (!eight_share(rows_of(sources))) outputs = kTileOutputs;
        shape_.scale_bytes = tiles_of(shape_.n) * chunks_of(shape_.k) * outputs * 4;
        ESPALIER_ASSIGN_OR_RETURN(
            Buffer scales,
            device_.allocate(static_cast<std::size_t>(shape_.count * shape_.scale_bytes)));
        for (std::size_t index = 0; index < stack.size(); ++index) {
            const std::vector<float> values = scales_of(rows_of(stack[index]), outputs);
            for (const float value : values)
                if (!std::isfinite(value)) faults |= kBadScale;
            ESPALIER_RETURN_IF_ERROR(device_.upload(
                stream_, scales.data() + static_cast<std::int64_t>(index) * shape_.scale_bytes,
                values.data(), values.size() * sizeof(float)));
        }
        ESPALIER_RETURN_IF_ERROR(device_.synchronize(stream_));
        return scales;
    }

    // The sources' rows by place in the packed matrix.
    std::vector<SourceRow> rows_of(std::span<const WeightSource> sources) const {
        std::vector<SourceRow> joined;
        for (const WeightSource& source : sources)
            for (std::int64_t n = 0; n < source.n; ++n) joined.push_back({&source, n});
        if (shape_.layout != WeightLayout::gated_fragments) return joined;
        std::vector<SourceRow> dealt;
        for (std::int64_t place = 0; place < shape_.n; ++place)
            dealt.push_back(joined[static_cast<std::size_t>(gated_row(place, shape_.n))]);
        return dealt;
    }
    // True if every eight outputs share their scales.
    bool eight_share(const std::vector<SourceRow>& rows) const {
        const auto block = [&](const SourceRow& row) {
            if (shape_.format.code == WeightCode::e2m1) return std::int64_t{0};
            return (grid_origin(*row.source).n + row.n) / row.source->format.group_n;
        };
        for (std::size_t place = 0; place < rows.size(); ++place) {
            const SourceRow &row = rows[place], &first = rows[place / 8 * 8];
            if (row.source != first.source || block(row) != block(first)) return false;
        }
        return true;
    }
    std::vector<float> scales_of(const std::vector<SourceRow>& rows, std::int64_t outputs) const {
        const std::int64_t chunks = chunks_of(shape_.k);
        std::vector<float> values(static_cast<std::size_t>(shape_.scale_bytes) / sizeof(float));
        const std::size_t step = outputs == 2 ? 8 : 1;
        for (std::size_t place = 0; place < rows.size(); place += step) {
            const SourceRow& row = rows[place];
            const auto output = static_cast<std::int64_t>(place);
            for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
                values[static_cast<std::size_t>((output / kTileOutputs * chunks + chunk) * outputs +
                                                output % kTileOutputs /
                                                    static_cast<std::int64_t>(step))] =
                    shape_.format.code == WeightCode::e2m1 ? row.source->tensor_scale * kE2m1Factor
                                                           : scale_of(*row.source, row.n, chunk);
        }
        return values;
    }

    Device& device_;
    cudaStream_t stream_;
    WeightView shape_;
    bool fragments_;
    std::int64_t row_bytes_;
    Buffer data_;
    Buffer rows_;           // one matrix in rows
    Buffer scales_;         // and its scales of groups
    Buffer turned_;         // one transposed source as it is stored
    Buffer stored_scales_;  // one source's
    Buffer faults_;
};

}  // namespace

Expected<Weight> pack(Device& device, WeightStack stack) {
    ESPALIER_ASSIGN_OR_RETURN(WeightView shape, common_shape(stack));
    shape.layout = WeightLayout::fragments;
    ESPALIER_RETURN_IF_ERROR(check_format(shape, stack));
    return Packer(device, shape).run(stack);
}

Expected<Weight> pack_gated(Device& device, WeightStack stack) {
    ESPALIER_ASSIGN_OR_RETURN(WeightView shape, common_shape(stack));
    if (!in_fragments(shape.format.code) || shape.n % kTileOutputs != 0) return pack(device, stack);
    shape.layout = WeightLayout::gated_fragments;
    ESPALIER_RETURN_IF_ERROR(check_format(shape, stack));
    return Packer(device, shape).run(stack);
}

}  // namespace espalier::linalg::cuda
