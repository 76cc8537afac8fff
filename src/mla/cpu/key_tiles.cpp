// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/key_tiles.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/element.hpp"
#include "mla/storage.hpp"

namespace espalier::mla::cpu {
namespace {

// Place of column d, lane `lane` in a query block, in elements.
std::int64_t query_place(const TileKernels& kernels, std::int64_t d, int lane) {
    return kernels.bf16_elements ? (d / 2 * kLanes + lane) * 2 + d % 2 : d * kLanes + lane;
}

}  // namespace

std::int64_t element_bytes(const TileKernels& kernels) { return kernels.bf16_elements ? 2 : 4; }

const std::byte* KeySource::address(std::int64_t slot) const {
    return slot_bytes(kv_, pool_slot(pages_, kv_.page_tokens, slot));
}

void KeySource::copy_key(std::int64_t slot, std::byte* to) const {
    if (kv_.format == KvFormat::bf16 && !kernels_.bf16_elements)
        return kernels_.widen_bf16(address(slot), reinterpret_cast<float*>(to), kKey);
    if (kv_.format == KvFormat::fp16)
        return kernels_.widen_fp16(address(slot), reinterpret_cast<float*>(to), kKey);
    std::memcpy(to, address(slot), static_cast<std::size_t>(kKey * element_bytes(kernels_)));
}

void KeySource::clear_keys(std::int64_t from, std::byte* copy) const {
    const std::int64_t key_bytes = kKey * element_bytes(kernels_);
    std::memset(copy + from * key_bytes, 0,
                static_cast<std::size_t>((kGroupKeys - from) * key_bytes));
}

const std::byte* KeySource::straight(std::int64_t first, std::int64_t count,
                                     std::byte* copy) const {
    const bool in_place = kernels_.bf16_elements || kv_.format == KvFormat::f32;
    if (in_place && count == kGroupKeys) return address(first);
    for (std::int64_t i = 0; i < count; ++i)
        copy_key(first + i, copy + i * kKey * element_bytes(kernels_));
    clear_keys(count, copy);
    return copy;
}

const std::byte* KeySource::gathered(const std::int32_t* slots, std::int64_t count,
                                     std::byte* copy) const {
    for (std::int64_t i = 0; i < count; ++i)
        copy_key(slots[i], copy + i * kKey * element_bytes(kernels_));
    clear_keys(count, copy);
    return copy;
}

void pack_query(const TileKernels& kernels, const std::byte* q, DType dtype, std::int64_t columns,
                int lane, std::byte* block) {
    if (kernels.bf16_elements) {  // pairs of columns side by side; queries of a bf16 cache are bf16
        for (std::int64_t d = 0; d < columns; d += 2)
            std::memcpy(block + query_place(kernels, d, lane) * 2, q + d * 2, 4);
        return;
    }
    for (std::int64_t d = 0; d < columns; ++d)
        store_element(block, DType::f32, query_place(kernels, d, lane), load_element(q, dtype, d));
}

void clear_query(const TileKernels& kernels, std::int64_t columns, int lane, std::byte* block) {
    const DType dtype = kernels.bf16_elements ? DType::bf16 : DType::f32;
    for (std::int64_t d = 0; d < columns; ++d)
        store_element(block, dtype, query_place(kernels, d, lane), 0.0f);
}

void reset_state(const LaneState& state, std::int64_t columns) {
    std::fill_n(state.maximum, kLanes, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, kLanes, 0.0f);
    std::fill_n(state.out, kLanes * columns, 0.0f);
}

void OutputRows::finish(const TileKernels& kernels, const LaneState& state, int lane,
                        std::int64_t packed) const {
    if (state.maximum[lane] == -std::numeric_limits<float>::infinity()) return nothing(packed);
    const float* row = state.out + lane * columns;
    const float inverse = 1.0f / state.sum[lane];
    for (std::int64_t c = 0; c < columns; ++c) {
        // + 0: a hidden key may turn a sum of -0 into +0, and nothing else; after this the two are
        // the same.
        const float value = row[c / 32 * 32 + kernels.column[c % 32]] * inverse + 0.0f;
        store_element(out, dtype, packed * columns + c, value);
    }
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
