// SPDX-License-Identifier: Apache-2.0
#include "model/convert.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <system_error>

#include "base/element.hpp"
#include "checkpoint/quantization.hpp"
#include "checkpoint/synthetic.hpp"
#include "checkpoint/tensor_check.hpp"
#include "checkpoint/tensor_list.hpp"
#include "linalg/unpacked_blocks.hpp"
#include "model/checkpoint_writer.hpp"
#include "model/stored_matrix.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::Quantization;
using checkpoint::QuantizedLayout;
using checkpoint::StoredType;
using checkpoint::Tensor;
using checkpoint::TensorRole;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kKvB = ".kv_b_proj.weight";
constexpr std::string_view kKeyHalf = ".k_b_proj.weight", kValueHalf = ".v_b_proj.weight";

// Blocks whose weights are codes times scales: what integers of compressed-tensors are, too.
bool has_codes(BlockCode block) {
    return block != BlockCode::none && !facts_of(block).format.zero_points;
}
// True where a block's one scale is a number of 16 bits.
bool has_short_scales(BlockCode block) {
    return block == BlockCode::q8_0 || block == BlockCode::q4_0 || block == BlockCode::q5_0 ||
           block == BlockCode::iq4_nl;
}

// One kind that holds the codes of several.
class CommonKind {
  public:
    void add(BlockCode block) {
        const WeightFormat& format = facts_of(block).format;
        const bool four = format.code == WeightCode::int4;
        bits_ = bits_ == 8 || !four ? 8 : 4;
        group_ = group_ == 0 ? format.group_k : std::min(group_, format.group_k);
    }
    std::optional<Quantization> quantization() const {
        if (bits_ == 0) return std::nullopt;
        return Quantization{bits_ == 4 ? QuantizedLayout::packed_integers : QuantizedLayout::int8,
                            bits_, group_};
    }

  private:
    int bits_ = 0;
    std::int32_t group_ = 0;
};

// Codes of a matrix as `to` stores them, from those of its blocks.
std::vector<std::byte> stored_codes(const linalg::WeightSource& source, const Quantization& to) {
    const std::int64_t weights = source.n * source.k;
    const auto bytes = static_cast<std::size_t>(weights * to.bits / 8);
    std::vector<std::byte> codes(bytes);
    if (facts_of(source.format.code).bits == to.bits) {
        const std::byte offset = to.bits == 4 ? std::byte{0x88} : std::byte{0};
        for (std::size_t i = 0; i < bytes; ++i) codes[i] = source.data[i] ^ offset;
        return codes;
    }
    for (std::int64_t i = 0; i < weights; ++i)
        codes[static_cast<std::size_t>(i)] = static_cast<std::byte>(
            static_cast<std::int8_t>(load_weight(source.data, source.format.code, i)));
    return codes;
}

// Scales likewise: one of a longer group is repeated.
std::vector<std::byte> stored_scales(const linalg::WeightSource& source, const Quantization& to,
                                     DType type) {
    const std::int64_t groups = source.k / to.group;
    std::vector<std::byte> scales(static_cast<std::size_t>(source.n * groups) * bytes_of(type));
    for (std::int64_t i = 0; i < source.n * groups; ++i) {
        const std::int64_t from =
            i / groups * source.scale_stride + i % groups * to.group / source.format.group_k;
        store_element(scales.data(), type, i, load_element(source.scales, DType::f32, from));
    }
    return scales;
}

class Converter {
  public:
    Converter(const checkpoint::Checkpoint& source, ThreadPool& pool, const ConvertOptions& options)
        : source_(source), pool_(pool), options_(options), config_(source.config()) {}

    Expected<void> run(const fs::path& directory) {
        if (!source_.is_gguf())
            return fail(ErrorKind::unsupported, "{}: no GGUF file; convert reads these",
                        source_.directory().string());
        ESPALIER_RETURN_IF_ERROR(checkpoint::check_tensors(source_));
        find_roles();
        choose();
        for (const std::string& name : source_.names()) ESPALIER_RETURN_IF_ERROR(add(name));
        if (config_.tie_word_embeddings && (heads_ || embedding().type == StoredType::blocks)) {
            config_.tie_word_embeddings = false;
            add_matrix("lm_head", embedding());
        }
        std::error_code error;
        WrittenCheckpoint to{.command = "convert",
                             .what = fs::weakly_canonical(source_.directory(), error).string(),
                             .pieces = std::move(pieces_),
                             .texts = options_.texts,
                             .shard_limit_bytes = options_.shard_limit_bytes,
                             .progress = options_.progress};
        to.texts.emplace_back("generation_config.json",
                              checkpoint::generation_config_json_of(config_, source_.generation()));
        to.texts.emplace_back("config.json", config_json());
        return write_checkpoint(directory, to);
    }

  private:
    Tensor embedding() const { return *source_.stored("model.embed_tokens.weight"); }

    void find_roles() {
        for (checkpoint::TensorSpec& spec : checkpoint::list_tensors(
                 config_, {.dtype = DType::bf16, .repeat_mtp_embeddings = true}))
            roles_.emplace(std::move(spec.name), spec.role);
    }
    // True for matrices whose products have codes where their blocks do.
    bool is_matrix(const std::string& name) const {
        const auto role = roles_.find(name);
        if (role == roles_.end() || name.ends_with(kKvB)) return false;
        return role->second == TensorRole::projection || role->second == TensorRole::head;
    }

    // Kinds of codes; the plain type that all numbers of matrices keep, if they have one.
    void choose() {
        CommonKind body, heads;
        std::vector<StoredType> types;
        const auto count = [&](const Tensor& tensor, bool head) {
            types.push_back(tensor.type);
            if (!has_codes(tensor.block)) return;
            (head ? heads : body).add(tensor.block);
            if (!has_short_scales(tensor.block)) scales_ = DType::f32;
        };
        for (const std::string& name : source_.names()) {
            const Tensor tensor = *source_.stored(name);
            if (is_matrix(name))
                count(tensor, roles_.at(name) == TensorRole::head);
            else if (name.ends_with(kKvB) || name.ends_with(kKeyHalf) || name.ends_with(kValueHalf))
                types.push_back(tensor.type);
        }
        if (config_.tie_word_embeddings) count(embedding(), true);
        body_ = body.quantization();
        heads_ = heads.quantization();
        std::ranges::sort(types);
        if (types.front() == types.back() && types.front() != StoredType::blocks)
            plain_ = types.front();
    }

    Expected<void> add(const std::string& name) {
        const Tensor tensor = *source_.stored(name);
        if (name.ends_with(kValueHalf)) return {};
        if (name.ends_with(kKeyHalf)) return add_halves(name, tensor);
        if (is_matrix(name) || name.ends_with(kKvB))
            add_matrix(name.substr(0, name.size() - kWeight.size()), tensor);
        else if (tensor.type == StoredType::blocks)
            add_numbers(name, tensor, StoredType::f32);  // looked up, or of a router: exact
        else
            add_copy(name, tensor);
        return {};
    }

    // matrix: without ".weight".
    void add_matrix(const std::string& matrix, const Tensor& tensor) {
        const std::string name = fmt::format("{}{}", matrix, kWeight);
        const std::optional<Quantization>& kind = checkpoint::names_head(matrix) ? heads_ : body_;
        if (has_codes(tensor.block) && kind && !name.ends_with(kKvB))
            add_codes(matrix, tensor, *kind);
        else if (tensor.type == plain_ || tensor.type == StoredType::bf16)
            add_copy(name, tensor);
        else
            add_numbers(name, tensor, plain_);
    }

    void add_copy(const std::string& name, const Tensor& tensor) {
        pieces_.push_back({{tensor_spec(name, tensor.type, tensor.shape)},
                           tensor.bytes.size(),
                           [tensor](checkpoint::OutputFile& file) {
                               return file.write(tensor.bytes.data(), tensor.bytes.size());
                           }});
    }

    // Each number rounded once, to a plain type.
    void add_numbers(const std::string& name, const Tensor& tensor, StoredType type) {
        pieces_.push_back({{tensor_spec(name, type, tensor.shape)},
                           tensor.bytes.size(),
                           [tensor, type](checkpoint::OutputFile& file) {
                               return write_numbers(file, widen(tensor), type);
                           }});
    }

    static Expected<void> write_numbers(checkpoint::OutputFile& file,
                                        const std::vector<float>& numbers, StoredType type) {
        const DType dtype = dtype_of(type);
        std::vector<std::byte> bytes(numbers.size() * bytes_of(dtype));
        for (std::size_t i = 0; i < numbers.size(); ++i)
            store_element(bytes.data(), dtype, static_cast<std::int64_t>(i), numbers[i]);
        return file.write(bytes.data(), bytes.size());
    }

    Expected<void> add_halves(const std::string& name, const Tensor& key) {
        const std::string attention = name.substr(0, name.size() - kKeyHalf.size() + 1);
        ESPALIER_ASSIGN_OR_RETURN(std::optional<checkpoint::KvHalves> halves,
                                  checkpoint::find_kv_halves(source_, attention));
        const auto [nope, value] = config_.head_dims();
        const StoredType type = plain_;
        pieces_.push_back(
            {{tensor_spec(attention + "kv_b_proj.weight", type,
                          {config_.num_attention_heads * (nope + value), config_.kv_lora_rank})},
             key.bytes.size() + halves->value.weights.bytes.size(),
             [this, type, halves = *halves](checkpoint::OutputFile& file) {
                 const StoredMatrix joined = join_halves(halves, config_);
                 std::vector<float> numbers(static_cast<std::size_t>(joined.n * joined.k));
                 for (std::size_t i = 0; i < numbers.size(); ++i)
                     numbers[i] = load_weight(joined.made.data(), joined.made_code,
                                              static_cast<std::int64_t>(i));
                 return write_numbers(file, numbers, type);
             }});
        return {};
    }

    void add_codes(const std::string& matrix, const Tensor& tensor, const Quantization& kind) {
        const std::int64_t n = tensor.shape[0], k = tensor.shape[1];
        const bool four = kind.bits == 4;
        WrittenPiece piece{.tensors = {}, .source_bytes = tensor.bytes.size(), .write = {}};
        if (four)
            piece.tensors = {tensor_spec(matrix + ".weight_packed", StoredType::i32, {n, k / 8})};
        else
            piece.tensors = {tensor_spec(matrix + ".weight", StoredType::i8, {n, k})};
        piece.tensors.push_back(tensor_spec(
            matrix + ".weight_scale", scales_ == DType::f16 ? StoredType::f16 : StoredType::f32,
            {n, k / kind.group}));
        if (four)
            piece.tensors.push_back(tensor_spec(matrix + ".weight_shape", StoredType::i32, {2}));
        piece.write = [this, tensor, kind](checkpoint::OutputFile& file) {
            return write_codes(file, tensor, kind);
        };
        pieces_.push_back(std::move(piece));
    }

    Expected<void> write_codes(checkpoint::OutputFile& file, const Tensor& tensor,
                               const Quantization& kind) const {
        const std::int64_t n = tensor.shape[0], k = tensor.shape[1];
        const auto unpacked =
            linalg::UnpackedBlocks::unpack(pool_, tensor.block, tensor.bytes.data(), n, k);
        const linalg::WeightSource source = unpacked.source();
        const std::vector<std::byte> codes = stored_codes(source, kind);
        const std::vector<std::byte> scales = stored_scales(source, kind, scales_);
        ESPALIER_RETURN_IF_ERROR(file.write(codes.data(), codes.size()));
        ESPALIER_RETURN_IF_ERROR(file.write(scales.data(), scales.size()));
        if (kind.bits != 4) return {};
        const std::array<std::int32_t, 2> shape = {static_cast<std::int32_t>(n),
                                                   static_cast<std::int32_t>(k)};
        return file.write(shape.data(), sizeof(shape));
    }

    std::string config_json() const {
        const std::string plain = checkpoint::config_json_of(config_, dtype_of(plain_));
        if (!body_ && !heads_) return plain;
        return checkpoint::quantized_config_json(plain, body_ ? *body_ : *heads_, heads_);
    }

    const checkpoint::Checkpoint& source_;
    ThreadPool& pool_;
    const ConvertOptions& options_;
    checkpoint::ModelConfig config_;
    std::map<std::string, TensorRole, std::less<>> roles_;
    std::optional<Quantization> body_, heads_;
    StoredType plain_ = StoredType::bf16;  // of matrices without codes
    DType scales_ = DType::f16;
    std::vector<WrittenPiece> pieces_;
};

}  // namespace

Expected<void> convert(const checkpoint::Checkpoint& source, const fs::path& directory,
                       ThreadPool& pool, const ConvertOptions& options) {
    return Converter(source, pool, options).run(directory);
}

}  // namespace espalier::model
