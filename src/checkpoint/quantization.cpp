// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantization.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.hpp"

namespace espalier::checkpoint {
namespace {

std::int64_t ceil_div(std::int64_t length, std::int64_t group) {
    return (length + group - 1) / group;
}

ScaleType scale_type(StoredType type) {
    switch (type) {
        case StoredType::bf16:
            return ScaleType::bf16;
        case StoredType::f16:
            return ScaleType::f16;
        case StoredType::e4m3:
            return ScaleType::e4m3;
        default:
            return ScaleType::f32;
    }
}

Expected<float> positive_scalar(const Checkpoint& checkpoint, const Tensor& tensor) {
    const std::string_view prefix = checkpoint.config().tensor_prefix();
    const bool f32 = tensor.type == StoredType::f32 && tensor.bytes.size() == sizeof(float);
    const bool bf16 = tensor.type == StoredType::bf16 && tensor.bytes.size() == sizeof(Bf16);
    if (!f32 && !bf16)
        return fail(ErrorKind::invalid, "{}: tensor '{}{}' is {} [{}], expected one F32 number",
                    tensor.file->name(), prefix, tensor.name, tensor.type_name(),
                    fmt::join(tensor.shape, ", "));
    float value = 0.0f;
    Bf16 narrow;
    std::memcpy(f32 ? static_cast<void*>(&value) : &narrow, tensor.bytes.data(),
                tensor.bytes.size());
    if (bf16) value = to_float(narrow);
    if (!(std::isnormal(value) && value > 0))
        return fail(ErrorKind::invalid, "{}: tensor '{}{}' is {}, expected a positive number",
                    tensor.file->name(), prefix, tensor.name, value);
    return value;
}

// ModelOpt's names, and those that vLLM also reads.
constexpr std::array<std::string_view, 4> kKeyScales = {"k_proj.k_scale", "attn.k_scale", "k_scale",
                                                        "kv_scale"};
constexpr std::array<std::string_view, 3> kValueScales = {"v_proj.v_scale", "attn.v_scale",
                                                          "v_scale"};

// One matrix and what stands beside it.
class MatrixReader {
  public:
    MatrixReader(const Checkpoint& checkpoint, const std::string& name, std::int64_t n,
                 std::int64_t k)
        : checkpoint_(checkpoint), name_(name), n_(n), k_(k) {}

    Expected<StoredWeight> read() {
        const Quantization& scheme = checkpoint_.config().quantization_of(name_);
        switch (stored_as(checkpoint_, name_)) {
            case QuantizedLayout::packed_integers:
                return packed_integers(scheme);
            case QuantizedLayout::int8:
                return int8(scheme);
            case QuantizedLayout::nvfp4:
                return nvfp4("weight", "weight_scale_2", "input_scale", false);
            case QuantizedLayout::packed_nvfp4:
                return nvfp4("weight_packed", "weight_global_scale", "input_global_scale", true);
            case QuantizedLayout::awq:
                return awq(scheme);
            case QuantizedLayout::none:
                break;
        }
        return plain();
    }

  private:
    Expected<StoredWeight> plain() {
        StoredWeight stored{.row_stride = k_};
        ESPALIER_ASSIGN_OR_RETURN(
            stored.weights, checkpoint_.find(name_ + ".weight", {n_, k_},
                                             {StoredType::bf16, StoredType::e4m3, StoredType::f32,
                                              StoredType::f16, StoredType::blocks}));
        stored.block = stored.weights.block;
        if (stored.block != BlockCode::none) {
            stored.format = facts_of(stored.block).format;
            return stored;
        }
        stored.format = plain_format(stored.weights.type);
        if (!stored.format.scaled()) return stored;
        if (checkpoint_.config().fp8_block == 0) return with_one_scale(std::move(stored));
        ESPALIER_ASSIGN_OR_RETURN(stored.scales, beside(stored.weights, "weight_scale_inv",
                                                        {ceil_div(n_, stored.format.group_n),
                                                         ceil_div(k_, stored.format.group_k)},
                                                        {StoredType::f32}));
        return stored;
    }

    // The file's number fills the grid that kernels read, which changes no product: blocks of one
    // scale are summed one after another as blocks of several are.
    Expected<StoredWeight> with_one_scale(StoredWeight stored) {
        ESPALIER_ASSIGN_OR_RETURN(const float scale,
                                  scalar_beside(stored.weights, "weight_scale_inv"));
        if (checkpoint_.has(name_ + ".activation_scale"))
            ESPALIER_RETURN_IF_ERROR(scalar_beside(stored.weights, "activation_scale"));
        const std::int64_t groups =
            ceil_div(n_, stored.format.group_n) * ceil_div(k_, stored.format.group_k);
        stored.repeated_scale =
            std::make_shared<const std::vector<float>>(static_cast<std::size_t>(groups), scale);
        return stored;
    }

    static WeightFormat plain_format(StoredType type) {
        switch (type) {
            case StoredType::f32:
                return {.code = WeightCode::f32};
            case StoredType::f16:
                return {.code = WeightCode::f16};
            case StoredType::bf16:
                return {.code = WeightCode::bf16};
            case StoredType::e4m3:
                return kFp8Blocks;
            default:
                break;
        }
        CHECK(false, "{} is no weight dtype", name_of(type));
    }

    Expected<StoredWeight> packed_integers(const Quantization& scheme) {
        const std::int64_t per_word = 32 / scheme.bits;
        StoredWeight stored{.row_stride = ceil_div(k_, per_word) * per_word,
                            .offset_codes = true,
                            .layout = QuantizedLayout::packed_integers};
        ESPALIER_ASSIGN_OR_RETURN(
            stored.weights, checkpoint_.find(name_ + ".weight_packed", {n_, ceil_div(k_, per_word)},
                                             {StoredType::i32}));
        ESPALIER_RETURN_IF_ERROR(integer_scales(scheme, stored));
        ESPALIER_ASSIGN_OR_RETURN(const Tensor shape, beside(stored.weights, "weight_shape", {2},
                                                             {StoredType::i32, StoredType::i64}));
        const auto dimension = [&](std::size_t index) {
            std::int64_t wide = 0;
            std::int32_t narrow = 0;
            if (shape.type == StoredType::i64)
                std::memcpy(&wide, shape.bytes.data() + index * 8, sizeof(wide));
            else
                std::memcpy(&narrow, shape.bytes.data() + index * 4, sizeof(narrow));
            return shape.type == StoredType::i64 ? wide : std::int64_t{narrow};
        };
        if (dimension(0) != n_ || dimension(1) != k_)
            return fail(ErrorKind::invalid, "{}: tensor '{}' says [{}, {}] of a matrix [{}, {}]",
                        shape.file->name(), full(shape.name), dimension(0), dimension(1), n_, k_);
        return stored;
    }

    Expected<StoredWeight> int8(const Quantization& scheme) {
        StoredWeight stored{.row_stride = k_, .layout = QuantizedLayout::int8};
        ESPALIER_ASSIGN_OR_RETURN(stored.weights,
                                  checkpoint_.find(name_ + ".weight", {n_, k_}, {StoredType::i8}));
        ESPALIER_RETURN_IF_ERROR(integer_scales(scheme, stored));
        return stored;
    }

    Expected<void> integer_scales(const Quantization& scheme, StoredWeight& stored) {
        // A scale for a whole row is one for as many 128 inputs as it takes.
        const std::int64_t group = scheme.group > 0 ? scheme.group : ceil_div(k_, 128) * 128;
        ESPALIER_ASSIGN_OR_RETURN(stored.scales,
                                  beside(stored.weights, "weight_scale", {n_, ceil_div(k_, group)},
                                         {StoredType::bf16, StoredType::f16, StoredType::f32}));
        stored.format = grouped(scheme.bits == 4 ? WeightCode::int4 : WeightCode::int8,
                                static_cast<std::int32_t>(group), scale_type(stored.scales->type));
        if (!scheme.zero_points) return {};
        stored.format.scale = ScaleType::f32;
        stored.format.zero_points = true;
        const bool bytes = stored.layout == QuantizedLayout::int8;
        const std::int64_t rows = bytes ? n_ : ceil_div(n_, 32 / scheme.bits);
        ESPALIER_ASSIGN_OR_RETURN(
            stored.zeros, beside(stored.weights, "weight_zero_point", {rows, ceil_div(k_, group)},
                                 {bytes ? StoredType::i8 : StoredType::i32}));
        return {};
    }

    Expected<StoredWeight> awq(const Quantization& scheme) {
        const std::int64_t group = scheme.group > 0 ? scheme.group : ceil_div(k_, 128) * 128;
        if (n_ % 8 != 0 || (scheme.group > 0 && k_ % group != 0))
            return fail(ErrorKind::unsupported,
                        "{}: '{}' is [{}, {}]: AWQ takes outputs by 8 and inputs by groups of {}",
                        checkpoint_.directory().string(), full(name_), n_, k_, group);
        StoredWeight stored{.layout = QuantizedLayout::awq};
        stored.format = grouped(WeightCode::int4, static_cast<std::int32_t>(group), ScaleType::f32);
        stored.format.zero_points = true;
        ESPALIER_ASSIGN_OR_RETURN(
            stored.weights, checkpoint_.find(name_ + ".qweight", {k_, n_ / 8}, {StoredType::i32}));
        const std::int64_t groups = ceil_div(k_, group);
        ESPALIER_ASSIGN_OR_RETURN(
            stored.zeros, beside(stored.weights, "qzeros", {groups, n_ / 8}, {StoredType::i32}));
        ESPALIER_ASSIGN_OR_RETURN(stored.scales,
                                  beside(stored.weights, "scales", {groups, n_},
                                         {StoredType::f16, StoredType::bf16, StoredType::f32}));
        return stored;
    }

    // divided: by the matrix's own scale, which compressed-tensors stores as the factor that its
    // numbers were multiplied with. input_scale: may be absent, since nothing reads it.
    Expected<StoredWeight> nvfp4(const char* codes, const char* own_scale, const char* input_scale,
                                 bool divided) {
        if (k_ % kNvfp4.group_k != 0)
            return fail(ErrorKind::unsupported,
                        "{}: '{}' has {} inputs: NVFP4 takes multiples of {}",
                        checkpoint_.directory().string(), full(name_), k_, kNvfp4.group_k);
        StoredWeight stored{.format = kNvfp4, .row_stride = k_};
        ESPALIER_ASSIGN_OR_RETURN(
            stored.weights,
            checkpoint_.find(fmt::format("{}.{}", name_, codes), {n_, k_ / 2}, {StoredType::u8}));
        ESPALIER_ASSIGN_OR_RETURN(
            stored.scales,
            beside(stored.weights, "weight_scale", {n_, k_ / kNvfp4.group_k}, {StoredType::e4m3}));
        ESPALIER_ASSIGN_OR_RETURN(const float own, scalar_beside(stored.weights, own_scale));
        if (checkpoint_.has(fmt::format("{}.{}", name_, input_scale)))
            ESPALIER_RETURN_IF_ERROR(scalar_beside(stored.weights, input_scale));
        stored.tensor_scale = divided ? 1.0f / own : own;
        return stored;
    }

    // A tensor that a matrix cannot be read without.
    Expected<Tensor> beside(const Tensor& matrix, const char* suffix,
                            std::initializer_list<std::int64_t> shape,
                            std::initializer_list<StoredType> types) const {
        const std::string name = fmt::format("{}.{}", name_, suffix);
        if (!checkpoint_.has(name)) return missing(matrix, name);
        return checkpoint_.find(name, shape, types);
    }

    Expected<float> scalar_beside(const Tensor& matrix, const char* suffix) const {
        const std::string name = fmt::format("{}.{}", name_, suffix);
        const std::optional<Tensor> tensor = checkpoint_.stored(name);
        if (!tensor) return missing(matrix, name);
        return positive_scalar(checkpoint_, *tensor);
    }

    tl::unexpected<Error> missing(const Tensor& matrix, const std::string& name) const {
        return fail(ErrorKind::not_found, "{}: no tensor '{}', without which '{}' cannot be read",
                    checkpoint_.directory().string(), full(name), full(matrix.name));
    }
    std::string full(std::string_view name) const {
        return fmt::format("{}{}", checkpoint_.config().tensor_prefix(), name);
    }

    const Checkpoint& checkpoint_;
    const std::string& name_;
    std::int64_t n_, k_;
};

}  // namespace

bool names_head(std::string_view matrix) {
    return matrix.ends_with("lm_head") || matrix.ends_with("shared_head.head");
}

QuantizedLayout stored_as(const Checkpoint& checkpoint, std::string_view name) {
    const QuantizedLayout announced = checkpoint.config().quantization_of(name).layout;
    const std::optional<Tensor> weight = checkpoint.stored(fmt::format("{}.weight", name));
    switch (announced) {
        case QuantizedLayout::packed_integers:
        case QuantizedLayout::packed_nvfp4:
            return checkpoint.has(fmt::format("{}.weight_packed", name)) ? announced
                                                                         : QuantizedLayout::none;
        case QuantizedLayout::int8:
            return weight && weight->type == StoredType::i8 ? announced : QuantizedLayout::none;
        case QuantizedLayout::nvfp4:
            return weight && weight->type == StoredType::u8 ? announced : QuantizedLayout::none;
        case QuantizedLayout::awq:
            return checkpoint.has(fmt::format("{}.qweight", name)) ? announced
                                                                   : QuantizedLayout::none;
        case QuantizedLayout::none:
            break;
    }
    return QuantizedLayout::none;
}

bool has_matrix(const Checkpoint& checkpoint, std::string_view name) {
    return stored_as(checkpoint, name) != QuantizedLayout::none ||
           checkpoint.has(fmt::format("{}.weight", name));
}

std::span<const std::string_view> tensors_of(const Checkpoint& checkpoint, std::string_view name) {
    static constexpr std::string_view kPlain[] = {"weight"};
    static constexpr std::string_view kFp8[] = {"weight", "weight_scale_inv"};
    static constexpr std::string_view kFp8OneScale[] = {"weight", "weight_scale_inv",
                                                        "activation_scale"};
    static constexpr std::string_view kPacked[] = {"weight_packed", "weight_scale", "weight_shape"};
    static constexpr std::string_view kInt8[] = {"weight", "weight_scale"};
    static constexpr std::string_view kShiftedPacked[] = {"weight_packed", "weight_scale",
                                                          "weight_zero_point", "weight_shape"};
    static constexpr std::string_view kShiftedInt8[] = {"weight", "weight_scale",
                                                        "weight_zero_point"};
    static constexpr std::string_view kAwq[] = {"qweight", "qzeros", "scales"};
    static constexpr std::string_view kNv[] = {"weight", "weight_scale", "weight_scale_2",
                                               "input_scale"};
    static constexpr std::string_view kPackedNv[] = {"weight_packed", "weight_scale",
                                                     "weight_global_scale", "input_global_scale"};
    const bool shifted = checkpoint.config().quantization_of(name).zero_points;
    switch (stored_as(checkpoint, name)) {
        case QuantizedLayout::packed_integers:
            if (shifted) return kShiftedPacked;
            return kPacked;
        case QuantizedLayout::int8:
            if (shifted) return kShiftedInt8;
            return kInt8;
        case QuantizedLayout::awq:
            return kAwq;
        case QuantizedLayout::nvfp4:
            return kNv;
        case QuantizedLayout::packed_nvfp4:
            return kPackedNv;
        case QuantizedLayout::none:
            break;
    }
    const std::optional<Tensor> weight = checkpoint.stored(fmt::format("{}.weight", name));
    if (weight && weight->type == StoredType::e4m3) {
        if (checkpoint.config().fp8_block == 0) return kFp8OneScale;
        return kFp8;
    }
    return kPlain;
}

Expected<StoredWeight> find_weight(const Checkpoint& checkpoint, const std::string& name,
                                   std::int64_t n, std::int64_t k) {
    return MatrixReader(checkpoint, name, n, k).read();
}

Expected<std::optional<KvHalves>> find_kv_halves(const Checkpoint& checkpoint,
                                                 const std::string& attention) {
    const std::string key = attention + "k_b_proj", value = attention + "v_b_proj";
    if (has_matrix(checkpoint, attention + "kv_b_proj") ||
        (!has_matrix(checkpoint, key) && !has_matrix(checkpoint, value)))
        return std::nullopt;
    const ModelConfig& config = checkpoint.config();
    const std::int64_t heads = config.num_attention_heads;
    KvHalves halves;
    ESPALIER_ASSIGN_OR_RETURN(halves.key, find_weight(checkpoint, key, heads * config.kv_lora_rank,
                                                      config.qk_nope_head_dim));
    ESPALIER_ASSIGN_OR_RETURN(
        halves.value,
        find_weight(checkpoint, value, heads * config.v_head_dim, config.kv_lora_rank));
    return halves;
}

bool is_kv_scale(std::string_view name) {
    return std::ranges::find(kKeyScales, name) != kKeyScales.end() ||
           std::ranges::find(kValueScales, name) != kValueScales.end();
}

Expected<std::optional<float>> kv_scale_of(const Checkpoint& checkpoint,
                                           const std::string& attention) {
    std::optional<float> scale;
    for (const std::string_view name : kKeyScales) {
        const std::optional<Tensor> tensor =
            checkpoint.stored(fmt::format("{}{}", attention, name));
        if (!tensor) continue;
        ESPALIER_ASSIGN_OR_RETURN(const float value, positive_scalar(checkpoint, *tensor));
        if (scale && *scale != value)
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}{}' is {}, but another says {} of the same keys",
                        tensor->file->name(), checkpoint.config().tensor_prefix(), tensor->name,
                        value, *scale);
        scale = value;
    }
    for (const std::string_view name : kValueScales)
        if (const auto tensor = checkpoint.stored(fmt::format("{}{}", attention, name)))
            ESPALIER_RETURN_IF_ERROR(positive_scalar(checkpoint, *tensor));
    return scale;
}

}  // namespace espalier::checkpoint
