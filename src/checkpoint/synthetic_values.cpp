// SPDX-License-Identifier: Apache-2.0
// The generator of synthetic.hpp on the host.
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "checkpoint/synthetic.hpp"
#include "checkpoint/synthetic_rule.hpp"

namespace espalier::checkpoint {
namespace {

std::uint64_t fnv1a64(std::string_view text) {
    std::uint64_t hash = 0xCBF29CE484222325ull;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return hash;
}

template <typename Element>
void fill_codes(const TensorSpec& spec, std::uint64_t seed, std::uint64_t first,
                std::uint64_t count, std::byte* out) {
    const std::uint64_t start = synthetic_start(spec, seed);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto code = synthetic_code<Element>(start, first + i);
        std::memcpy(out + i * sizeof(code), &code, sizeof(code));
    }
}

void fill_shape(const TensorSpec& spec, std::uint64_t first, std::uint64_t count, std::byte* out) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto size = static_cast<std::int32_t>(first + i == 0 ? spec.outputs : spec.inputs);
        std::memcpy(out + i * sizeof(size), &size, sizeof(size));
    }
}

// A draft's token i is the target's ⌊i · V / Vd⌋: spread over the vocabulary, ascending.
std::int64_t target_token(std::int64_t draft, std::int64_t draft_size, std::int64_t target_size) {
    return draft * target_size / draft_size;
}

void fill_offsets(const TensorSpec& spec, std::uint64_t first, std::uint64_t count,
                  std::byte* out) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto draft = static_cast<std::int64_t>(first + i);
        const std::int64_t offset = target_token(draft, spec.shape[0], spec.inputs) - draft;
        std::memcpy(out + i * sizeof(offset), &offset, sizeof(offset));
    }
}

void fill_members(const TensorSpec& spec, std::uint64_t first, std::uint64_t count,
                  std::byte* out) {
    const std::int64_t target_size = spec.shape[0], draft_size = spec.inputs;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto token = static_cast<std::int64_t>(first + i);
        // The least draft token whose target is not below it.
        const std::int64_t draft = (token * draft_size + target_size - 1) / target_size;
        const bool is_member =
            draft < draft_size && target_token(draft, draft_size, target_size) == token;
        out[i] = std::byte{is_member};
    }
}

template <typename Convert>
void fill(const TensorSpec& spec, std::uint64_t seed, std::uint64_t first, std::uint64_t count,
          std::byte* out, Convert convert) {
    const Affine affine = affine_of(spec);
    const std::uint64_t start = synthetic_start(spec, seed);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto value = convert(synthetic_number(affine, start, first + i));
        std::memcpy(out + i * sizeof(value), &value, sizeof(value));
    }
}

}  // namespace

bool is_random(const TensorSpec& spec) {
    return spec.role != TensorRole::stored_shape && spec.role != TensorRole::draft_offset &&
           spec.role != TensorRole::draft_member;
}

std::uint64_t synthetic_start(const TensorSpec& spec, std::uint64_t seed) {
    return fnv1a64(spec.name) + (seed + 1) * 0x9E3779B97F4A7C15ull;
}

Affine affine_of(const TensorSpec& spec) {
    const auto amplitude = [&spec] { return std::sqrt(3.0 / static_cast<double>(spec.inputs)); };
    if (spec.role == TensorRole::projection && spec.type == StoredType::e4m3)
        return {448.0, 2.0, -1.0, 0.0};
    switch (spec.role) {
        case TensorRole::embedding:
            return {1.0, 2.0, -1.0, 0.0};
        case TensorRole::norm:
            return {0.25, 2.0, -1.0, 1.0};
        case TensorRole::norm_bias:
            return {0.25, 2.0, -1.0, 0.0};
        case TensorRole::router_bias:
            return {0.1, 1.0, 0.0, 0.0};
        case TensorRole::scale:
            return {amplitude() / static_cast<double>(spec.largest_code), 1.0, 0.5, 0.0};
        case TensorRole::block_scale:
            return {1.0, 1.0, 0.5, 0.0};
        case TensorRole::head:
        case TensorRole::router:
        case TensorRole::projection:
            return {amplitude(), 2.0, -1.0, 0.0};
        case TensorRole::stored_shape:
        case TensorRole::draft_offset:
        case TensorRole::draft_member:
            break;
    }
    CHECK(false, "tensor '{}' holds no numbers of a model", spec.name);
}

void synthetic_values(const TensorSpec& spec, std::uint64_t seed, std::uint64_t first,
                      std::uint64_t count, std::byte* out) {
    if (spec.role == TensorRole::draft_offset) return fill_offsets(spec, first, count, out);
    if (spec.role == TensorRole::draft_member) return fill_members(spec, first, count, out);
    if (spec.role == TensorRole::stored_shape) return fill_shape(spec, first, count, out);
    switch (spec.type) {
        case StoredType::f32:
            return fill(spec, seed, first, count, out, [](float v) { return v; });
        case StoredType::f16:
            return fill(spec, seed, first, count, out, [](float v) { return to_fp16(v); });
        case StoredType::bf16:
            return fill(spec, seed, first, count, out, [](float v) { return to_bf16(v); });
        case StoredType::e4m3:
            return fill(spec, seed, first, count, out, [](float v) { return to_e4m3(v); });
        case StoredType::i32:
            return fill_codes<std::uint32_t>(spec, seed, first, count, out);
        case StoredType::i8:
        case StoredType::u8:
            return fill_codes<std::uint8_t>(spec, seed, first, count, out);
        default:
            CHECK(false, "tensor '{}' of type {} has no generator", spec.name, name_of(spec.type));
    }
}

}  // namespace espalier::checkpoint
