// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/key_tiles.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/element.hpp"

namespace espalier::mla::cpu {
namespace {

std::uint16_t bf16_bits(float value) { return to_bf16(value).bits; }

std::uint32_t pair_of(std::uint16_t even, std::uint16_t odd) {
    return even | static_cast<std::uint32_t>(odd) << 16;
}

// One row's pairs into lane 0 of a block; a second term goes behind the first one's columns.
void pack_pairs(const std::byte* row, DType dtype, std::int64_t columns, std::uint32_t* block) {
    for (std::int64_t d = 0; d < columns / 2; ++d) {
        if (dtype == DType::bf16) {
            std::memcpy(block + d * kLanes, row + d * 4, 4);
            continue;
        }
        const float even = load_element(row, dtype, 2 * d);
        const float odd = load_element(row, dtype, 2 * d + 1);
        const Bf16 first[2] = {to_bf16(even), to_bf16(odd)};
        block[d * kLanes] = pair_of(first[0].bits, first[1].bits);
        // f16 has 11 significant bits: 8 in the first term, and the rest fits the second.
        if (dtype == DType::f16)
            block[(columns / 2 + d) * kLanes] =
                pair_of(bf16_bits(even - to_float(first[0])), bf16_bits(odd - to_float(first[1])));
    }
}

}  // namespace

std::int64_t element_bytes(const TileKernels& kernels) { return kernels.bf16_elements ? 2 : 4; }

Elements elements_of(const TileKernels& kernels, KvFormat format, float kv_scale, DType query) {
    if (!kernels.bf16_elements) return {.in_place = format == KvFormat::f32};
    return {.in_place = format == KvFormat::bf16,
            .codes = format != KvFormat::bf16,
            .token_scales = format == KvFormat::fp8_token,
            .key_scale = format == KvFormat::fp8_tensor ? kv_scale : 1.0f,
            .query_terms = query == DType::f16 ? 2 : 1};
}

ScorePlan plan_scores(int row_pairs, int first, int pairs, int query_terms) {
    ScorePlan plan{};
    const auto add = [&](int begin, int end) {
        for (int term = 0; term < query_terms && begin < end; ++term)
            plan.segment[plan.segments++] = {term * row_pairs + begin, begin, end - begin};
    };
    add(first, first + pairs);
    plan.scaled = plan.segments;
    add(0, first);
    add(first + pairs, row_pairs);
    return plan;
}

void KeySource::lines(std::int64_t first, const std::byte*& keys, const std::byte*& rope) const {
    const std::int64_t slot = straight_slot(first);
    if (kv_.format != KvFormat::fp8_token) {
        keys = slot_bytes(kv_, slot);
        rope = nullptr;
        return;
    }
    const TokenPlanes planes = token_planes(kv_, slot);
    keys = planes.latent;
    rope = planes.rope;
    __builtin_prefetch(planes.scale, 0, 2);
}

int KeySource::line_step() const {
    return kv_.format == KvFormat::fp8_tensor || kv_.format == KvFormat::fp8_token ? 32 : 64;
}

Widening KeySource::widening(std::int64_t first, std::byte* to, float* scales) const {
    const std::int64_t slot = straight_slot(first);
    if (kv_.format == KvFormat::fp8_tensor) return {slot_bytes(kv_, slot), nullptr, to};
    const TokenPlanes planes = token_planes(kv_, slot);
    std::memcpy(scales, planes.scale, kGroupKeys * 4);
    return {planes.latent, planes.rope, to};
}

// Slots of one page.
void KeySource::copy_token_keys(std::int64_t slot, std::int64_t count, std::byte* to,
                                float* scales) const {
    const TokenPlanes planes = token_planes(kv_, slot);
    const std::int64_t element = element_bytes(kernels_);
    const std::int64_t latent = kv_.dims.latent;
    for (std::int64_t i = 0; i < count; ++i, to += (latent + kRope) * element) {
        std::memcpy(scales + i, planes.scale + i * 4, 4);
        kernels_.widen_e4m3(planes.latent + i * latent, scales[i], to, latent);
        const std::byte* rope = planes.rope + i * kRope * 2;
        if (kernels_.bf16_elements)
            std::memcpy(to + latent * element, rope, kRope * 2);
        else
            kernels_.widen_bf16(rope, reinterpret_cast<float*>(to + latent * element), kRope);
    }
}

void KeySource::copy_keys(std::int64_t slot, std::int64_t count, std::byte* to,
                          float* scales) const {
    if (kv_.format == KvFormat::fp8_token) return copy_token_keys(slot, count, to, scales);
    const std::byte* from = slot_bytes(kv_, slot);
    const std::int64_t columns = count * kv_.dims.key();
    switch (kv_.format) {
        case KvFormat::bf16:
            if (kernels_.bf16_elements) break;
            return kernels_.widen_bf16(from, reinterpret_cast<float*>(to), columns);
        case KvFormat::fp16:
            return kernels_.widen_fp16(from, reinterpret_cast<float*>(to), columns);
        case KvFormat::fp8_tensor:
            return kernels_.widen_e4m3(from, kv_.scale, to, columns);
        case KvFormat::f32:
        case KvFormat::fp8_token:
            break;
    }
    std::memcpy(to, from, static_cast<std::size_t>(columns * element_bytes(kernels_)));
}

void KeySource::clear_keys(std::int64_t from, std::byte* copy, float* scales) const {
    const std::int64_t key_bytes = kv_.dims.key() * element_bytes(kernels_);
    std::memset(copy + from * key_bytes, 0,
                static_cast<std::size_t>((kGroupKeys - from) * key_bytes));
    std::fill(scales + from, scales + kGroupKeys, 0.0f);
}

const std::byte* KeySource::straight(std::int64_t first, std::int64_t count, std::byte* copy,
                                     float* scales) const {
    const std::int64_t slot = straight_slot(first);
    const std::int64_t here = std::min(count, in_page(first));
    if (elements_.in_place && here == kGroupKeys) return slot_bytes(kv_, slot);
    copy_keys(slot, here, copy, scales);
    if (here < count)
        copy_keys(straight_slot(first + here), count - here,
                  copy + here * kv_.dims.key() * element_bytes(kernels_), scales + here);
    clear_keys(count, copy, scales);
    return copy;
}

const std::byte* KeySource::gathered(const std::int32_t* slots, std::int64_t count, std::byte* copy,
                                     float* scales) const {
    const std::int64_t key_bytes = kv_.dims.key() * element_bytes(kernels_);
    for (std::int64_t i = 0; i < count; ++i)
        copy_keys(slot_of(slots[i]), 1, copy + i * key_bytes, scales + i);
    clear_keys(count, copy, scales);
    return copy;
}

void pack_queries(const TileKernels& kernels, const std::byte* q, DType dtype, std::int64_t columns,
                  std::int64_t row_stride, int lanes, std::byte* block) {
    if (lanes == kLanes && dtype == DType::bf16 && kernels.pack_rows != nullptr)
        return kernels.pack_rows(q, row_stride, static_cast<int>(columns), block);
    if (lanes < kLanes) std::memset(block, 0, static_cast<std::size_t>(query_block_bytes(columns)));
    const auto row_bytes = row_stride * static_cast<std::int64_t>(bytes_of(dtype));
    for (int lane = 0; lane < lanes; ++lane) {
        const std::byte* row = q + lane * row_bytes;
        if (kernels.bf16_elements) {
            pack_pairs(row, dtype, columns, reinterpret_cast<std::uint32_t*>(block) + lane);
            continue;
        }
        auto* to = reinterpret_cast<float*>(block) + lane;
        for (std::int64_t d = 0; d < columns; ++d) to[d * kLanes] = load_element(row, dtype, d);
    }
}

void reset_state(const LaneState& state, std::int64_t columns) {
    std::fill_n(state.maximum, kLanes, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, kLanes, 0.0f);
    std::fill_n(state.out, kLanes * columns, 0.0f);
}

void OutputRows::finish(const TileKernels& kernels, const LaneState& state, int lane,
                        std::int64_t packed) const {
    if (state.maximum[lane] == -std::numeric_limits<float>::infinity()) return nothing(packed);
    const std::int64_t row_bytes = columns * static_cast<std::int64_t>(bytes_of(dtype));
    kernels.store_row(state.out + lane * columns, scale / state.sum[lane],
                      static_cast<int>(columns), dtype, out + packed * row_bytes);
    if (lse != nullptr)
        lse[packed] = static_cast<float>(static_cast<double>(state.maximum[lane]) +
                                         std::log(static_cast<double>(state.sum[lane])));
}

void OutputRows::nothing(std::int64_t packed) const {
    const std::int64_t row_bytes = columns * static_cast<std::int64_t>(bytes_of(dtype));
    std::memset(out + packed * row_bytes, 0, static_cast<std::size_t>(row_bytes));
    if (lse != nullptr) lse[packed] = -std::numeric_limits<float>::infinity();
}

}  // namespace espalier::mla::cpu
