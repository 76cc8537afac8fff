// SPDX-License-Identifier: Apache-2.0
#include "mla/storage.hpp"

#include <algorithm>
#include <cstring>

#include "mla/quantise.hpp"

namespace espalier::mla {
namespace {

template <typename T>
T load(const std::byte* data, std::int64_t index) {
    T value;
    std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
}

template <typename T>
void store(std::byte* data, std::int64_t index, T value) {
    std::memcpy(data + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
void read_columns(const std::byte* data, std::int64_t count, double* columns, double scale = 1.0) {
    for (std::int64_t d = 0; d < count; ++d)
        columns[d] = static_cast<double>(to_float(load<T>(data, d))) * scale;
}

// Returns whether a value was flushed.
template <typename T>
bool write_columns(const float* values, std::int64_t count, std::byte* data) {
    bool flushed = false;
    for (std::int64_t d = 0; d < count; ++d) {
        const Quantised<T> column = quantise<T>(values[d]);
        flushed |= column.flushed;
        store(data, d, column.stored);
    }
    return flushed;
}

bool write_e4m3(const float* values, std::int64_t count, float scale, std::byte* data) {
    bool flushed = false;
    for (std::int64_t d = 0; d < count; ++d) {
        const Quantised<E4m3> column = quantise_e4m3(values[d], scale);
        flushed |= column.flushed;
        store(data, d, column.stored);
    }
    return flushed;
}

float scale_of_token(const float* latent, std::int64_t count) {
    float largest = 0.0f;
    for (std::int64_t d = 0; d < count; ++d)
        largest = std::max(largest, finite_magnitude(latent[d]));
    return token_scale(largest);
}

template <typename T>
bool write_row(const KvPages& kv, std::int64_t slot, const float* latent, const float* rope) {
    std::byte* row = slot_bytes(kv, slot);
    const bool latent_flushed = write_columns<T>(latent, kv.dims.latent, row);
    const bool rope_flushed = write_columns<T>(
        rope, kv.dims.rope, row + kv.dims.latent * static_cast<std::int64_t>(sizeof(T)));
    return latent_flushed || rope_flushed;
}

}  // namespace

TokenPlanes token_planes(const KvPages& kv, std::int64_t slot) {
    const SlotParts parts = slot_parts(KvFormat::fp8_token, kv.dims, kv.page_tokens);
    return {part_bytes(kv, parts.part[0], slot), part_bytes(kv, parts.part[1], slot),
            part_bytes(kv, parts.part[2], slot)};
}

std::string_view name_of(KvFormat format) {
    switch (format) {
        case KvFormat::f32:
            return "f32";
        case KvFormat::bf16:
            return "bf16";
        case KvFormat::fp16:
            return "fp16";
        case KvFormat::fp8_tensor:
            return "fp8_tensor";
        case KvFormat::fp8_token:
            return "fp8_token";
    }
    return "?";
}

std::int64_t page_stride_bytes(KvFormat format, std::int64_t page_tokens, const KeyDims& dims) {
    std::int64_t bytes = 0;
    for (const SlotPart& part : slot_parts(format, dims, page_tokens).part)
        bytes += page_tokens * part.bytes;
    return format == KvFormat::fp8_token ? (bytes + 127) / 128 * 128 : bytes;
}

void read_slot(const KvPages& kv, std::int64_t slot, double* columns) {
    const auto [latent, rope] = kv.dims;
    switch (kv.format) {
        case KvFormat::f32:
            return read_columns<float>(slot_bytes(kv, slot), latent + rope, columns);
        case KvFormat::bf16:
            return read_columns<Bf16>(slot_bytes(kv, slot), latent + rope, columns);
        case KvFormat::fp16:
            return read_columns<Fp16>(slot_bytes(kv, slot), latent + rope, columns);
        case KvFormat::fp8_tensor:
            return read_columns<E4m3>(slot_bytes(kv, slot), latent + rope, columns,
                                      static_cast<double>(kv.scale));
        case KvFormat::fp8_token: {
            const TokenPlanes planes = token_planes(kv, slot);
            const auto scale = static_cast<double>(load<float>(planes.scale, 0));
            read_columns<E4m3>(planes.latent, latent, columns, scale);
            read_columns<Bf16>(planes.rope, rope, columns + latent);
        }
    }
}

bool write_slot(const KvPages& kv, std::int64_t slot, const float* latent, const float* rope) {
    const KeyDims& dims = kv.dims;
    switch (kv.format) {
        case KvFormat::f32:
            return write_row<float>(kv, slot, latent, rope);
        case KvFormat::bf16:
            return write_row<Bf16>(kv, slot, latent, rope);
        case KvFormat::fp16:
            return write_row<Fp16>(kv, slot, latent, rope);
        case KvFormat::fp8_tensor: {
            std::byte* row = slot_bytes(kv, slot);
            const bool latent_flushed = write_e4m3(latent, dims.latent, kv.scale, row);
            return write_e4m3(rope, dims.rope, kv.scale, row + dims.latent) || latent_flushed;
        }
        case KvFormat::fp8_token: {
            const TokenPlanes planes = token_planes(kv, slot);
            const float scale = scale_of_token(latent, dims.latent);
            store(planes.scale, 0, scale);
            const bool latent_flushed = write_e4m3(latent, dims.latent, scale, planes.latent);
            return write_columns<Bf16>(rope, dims.rope, planes.rope) || latent_flushed;
        }
    }
    return false;
}

void move_slot(const KvPages& kv, std::int64_t source, std::int64_t destination) {
    if (source == destination) return;
    for (const SlotPart& part : slot_parts(kv.format, kv.dims, kv.page_tokens).part)
        std::memcpy(part_bytes(kv, part, destination), part_bytes(kv, part, source),
                    static_cast<std::size_t>(part.bytes));
}

}  // namespace espalier::mla
