// SPDX-License-Identifier: Apache-2.0
#include "model/quantize.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/mapped_file.hpp"
#include "checkpoint/quantization.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "checkpoint/synthetic.hpp"
#include "checkpoint/tensor_check.hpp"
#include "checkpoint/tensor_list.hpp"
#include "linalg/round_weights.hpp"
#include "model/checkpoint_writer.hpp"
#include "model/weight_reader.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredType;
using checkpoint::TensorSpec;

constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;  // of a tokenizer

// One tensor or matrix of the source, and the tensors it becomes, one after another.
struct Piece {
    enum class Kind { copied, rounded, widened } kind = Kind::copied;
    WeightCode code = WeightCode::int4;  // of what is rounded
    std::string name = {};               // of the tensor, or of the matrix without ".weight"
    std::int64_t n = 0, k = 0;
    std::vector<TensorSpec> becomes = {};
    std::uint64_t source_bytes = 0;
};

class Quantizer {
  public:
    Quantizer(const checkpoint::Checkpoint& source, fs::path directory, ThreadPool& pool,
              const QuantizeOptions& options)
        : source_(source), directory_(std::move(directory)), pool_(pool), options_(options) {}

    Expected<void> run() {
        if (source_.is_gguf())
            return fail(ErrorKind::unsupported,
                        "{}: a GGUF file; quantize reads safetensors checkpoints",
                        source_.directory().string());
        ESPALIER_RETURN_IF_ERROR(checkpoint::check_tensors(source_));
        ESPALIER_RETURN_IF_ERROR(list());
        std::error_code error;
        WrittenCheckpoint to{
            .command = "quantize",
            .what = fmt::format("{}{} of {}", name_of(options_.code),
                                options_.head_int8 ? " and an int8 head" : "",
                                fs::weakly_canonical(source_.directory(), error).string()),
            .shard_limit_bytes = options_.shard_limit_bytes,
            .progress = options_.progress};
        for (const Piece& piece : pieces_)
            to.pieces.push_back(
                {piece.becomes, piece.source_bytes, [this, &piece](checkpoint::OutputFile& file) {
                     return write_piece(piece, file);
                 }});
        ESPALIER_RETURN_IF_ERROR(copy_texts(to));
        ESPALIER_ASSIGN_OR_RETURN(
            const std::string config,
            read_text_file(source_.directory() / "config.json", kMaxTextBytes));
        to.texts.emplace_back("config.json", checkpoint::quantized_config_json(
                                                 config, scheme(options_.code), head_scheme()));
        return write_checkpoint(directory_, to);
    }

  private:
    static checkpoint::Quantization scheme(WeightCode code) {
        using checkpoint::QuantizedLayout;
        const bool four = code == WeightCode::int4;
        return {four ? QuantizedLayout::packed_integers : QuantizedLayout::int8, four ? 4 : 8,
                linalg::kRoundedGroup};
    }
    std::optional<checkpoint::Quantization> head_scheme() const {
        if (!options_.head_int8) return std::nullopt;
        return scheme(WeightCode::int8);
    }

    // Every tensor of the source once: projections as matrices, the others as they are.
    Expected<void> list() {
        checkpoint::ModelConfig config = source_.config();
        if (config.quantization.layout != checkpoint::QuantizedLayout::none)
            return fail(ErrorKind::unsupported, "{}: its weights are quantized already",
                        source_.directory().string());
        config.wrapper = checkpoint::Wrapper::none;
        std::set<std::string> done;
        for (const TensorSpec& spec : checkpoint::list_tensors(
                 config, {.dtype = DType::bf16, .repeat_mtp_embeddings = true})) {
            if (spec.role != checkpoint::TensorRole::projection || !source_.has(spec.name))
                continue;
            const std::string matrix = spec.name.substr(0, spec.name.rfind('.'));
            ESPALIER_RETURN_IF_ERROR(add_matrix(matrix, spec.shape[0], spec.shape[1]));
            for (const std::string_view part : checkpoint::tensors_of(source_, matrix))
                done.insert(fmt::format("{}.{}", matrix, part));
        }
        if (options_.head_int8) ESPALIER_RETURN_IF_ERROR(add_heads(config, done));
        for (const std::string& name : source_.names())
            if (!done.contains(name)) add_copy(name);
        return {};
    }

    // A head that is tied becomes a matrix of its own; files may repeat the embedding under its
    // name.
    Expected<void> add_heads(const checkpoint::ModelConfig& config, std::set<std::string>& done) {
        const std::int64_t n = config.vocab_size, k = config.hidden_size;
        const auto add = [&](const std::string& from, const std::string& as) -> Expected<void> {
            ESPALIER_ASSIGN_OR_RETURN(const checkpoint::StoredWeight stored, roundable(from, n, k));
            add_rounded(from, as, stored, WeightCode::int8);
            for (const std::string_view part : checkpoint::tensors_of(source_, as))
                done.insert(fmt::format("{}.{}", as, part));
            return {};
        };
        ESPALIER_RETURN_IF_ERROR(
            add(config.tie_word_embeddings ? "model.embed_tokens" : "lm_head", "lm_head"));
        for (std::int64_t mtp = 0; mtp < config.num_nextn_predict_layers; ++mtp) {
            const std::string head =
                fmt::format("model.layers.{}.shared_head.head", config.num_hidden_layers + mtp);
            if (checkpoint::has_matrix(source_, head)) ESPALIER_RETURN_IF_ERROR(add(head, head));
        }
        return {};
    }

    // A matrix whose weights may be rounded.
    Expected<checkpoint::StoredWeight> roundable(const std::string& name, std::int64_t n,
                                                 std::int64_t k) {
        ESPALIER_ASSIGN_OR_RETURN(checkpoint::StoredWeight stored,
                                  checkpoint::find_weight(source_, name, n, k));
        const WeightCode code = stored.format.code;
        if (code != WeightCode::bf16 && code != WeightCode::e4m3)
            return fail(ErrorKind::unsupported,
                        "{}: '{}' is {}: BF16 and F8_E4M3 weights are rounded",
                        source_.directory().string(), name, name_of(code));
        return stored;
    }

    Expected<void> add_matrix(const std::string& name, std::int64_t n, std::int64_t k) {
        ESPALIER_ASSIGN_OR_RETURN(const checkpoint::StoredWeight stored, roundable(name, n, k));
        if (!name.ends_with("kv_b_proj")) {
            add_rounded(name, name, stored, options_.code);
        } else if (stored.format.code == WeightCode::bf16) {
            add_copy(name + ".weight");
        } else {
            pieces_.push_back(
                {.kind = Piece::Kind::widened,
                 .name = name,
                 .n = n,
                 .k = k,
                 .becomes = {tensor_spec(full(name) + ".weight", StoredType::bf16, {n, k})},
                 .source_bytes = stored.weights.bytes.size()});
        }
        return {};
    }

    // as: the matrix's name in the files that are written.
    void add_rounded(const std::string& name, const std::string& as,
                     const checkpoint::StoredWeight& stored, WeightCode code) {
        const std::int64_t n = stored.weights.shape[0], k = stored.weights.shape[1];
        Piece piece{.kind = Piece::Kind::rounded,
                    .code = code,
                    .name = name,
                    .n = n,
                    .k = k,
                    .source_bytes = stored.weights.bytes.size()};
        const std::int64_t groups = (k + linalg::kRoundedGroup - 1) / linalg::kRoundedGroup;
        TensorSpec scales = tensor_spec(full(as) + ".weight_scale", StoredType::bf16, {n, groups});
        if (code == WeightCode::int4)
            piece.becomes = {
                tensor_spec(full(as) + ".weight_packed", StoredType::i32, {n, (k + 7) / 8}),
                std::move(scales), tensor_spec(full(as) + ".weight_shape", StoredType::i32, {2})};
        else
            piece.becomes = {tensor_spec(full(as) + ".weight", StoredType::i8, {n, k}),
                             std::move(scales)};
        pieces_.push_back(std::move(piece));
    }

    std::string full(const std::string& name) const {
        return fmt::format("{}{}", source_.config().tensor_prefix(), name);
    }

    void add_copy(const std::string& name) {
        const checkpoint::Tensor tensor = *source_.stored(name);
        Piece piece{.name = name, .source_bytes = tensor.bytes.size()};
        piece.becomes = {tensor_spec(full(name), tensor.type, tensor.shape)};
        pieces_.push_back(std::move(piece));
    }

    Expected<void> write_piece(const Piece& piece, checkpoint::OutputFile& file) {
        if (piece.kind == Piece::Kind::copied) {
            const checkpoint::Tensor tensor = *source_.stored(piece.name);
            ESPALIER_RETURN_IF_ERROR(file.write(tensor.bytes.data(), tensor.bytes.size()));
            tensor.file->file().done_with(tensor.bytes);
            return {};
        }
        ESPALIER_ASSIGN_OR_RETURN(checkpoint::StoredWeight stored,
                                  checkpoint::find_weight(source_, piece.name, piece.n, piece.k));
        StoredMatrix matrix{.stored = std::move(stored), .n = piece.n, .k = piece.k};
        if (piece.kind == Piece::Kind::widened) {
            matrix.widen();
            return file.write(matrix.made.data(), matrix.made.size());
        }
        const auto rounded = linalg::RoundedWeight::round(pool_, matrix.whole(), piece.code);
        if (!rounded)
            return fail(rounded.error().kind, "{}: '{}': {}", source_.directory().string(),
                        piece.name, rounded.error().message);
        matrix.stored.weights.file->file().done_with(matrix.stored.weights.bytes);
        ESPALIER_RETURN_IF_ERROR(file.write(rounded->codes().data(), rounded->codes().size()));
        ESPALIER_RETURN_IF_ERROR(file.write(rounded->scales().data(), rounded->scales().size()));
        if (piece.code != WeightCode::int4) return {};
        const std::array<std::int32_t, 2> shape = {static_cast<std::int32_t>(piece.n),
                                                   static_cast<std::int32_t>(piece.k)};
        return file.write(shape.data(), sizeof(shape));
    }

    // Texts of the source's directory.
    Expected<void> copy_texts(WrittenCheckpoint& to) const {
        std::error_code error;
        for (const auto& item : fs::directory_iterator(source_.directory(), error)) {
            const std::string name = item.path().filename().string();
            const std::string extension = item.path().extension().string();
            const bool text = extension == ".json" || extension == ".jinja" ||
                              extension == ".txt" || extension == ".model" || extension == ".md";
            if (!text || name == "config.json" || name == "hf_quant_config.json" ||
                name.ends_with(".index.json") || !item.is_regular_file())
                continue;
            ESPALIER_ASSIGN_OR_RETURN(std::string bytes,
                                      read_text_file(item.path(), kMaxTextBytes));
            to.texts.emplace_back(name, std::move(bytes));
        }
        return {};
    }

    const checkpoint::Checkpoint& source_;
    fs::path directory_;
    ThreadPool& pool_;
    const QuantizeOptions& options_;
    std::vector<Piece> pieces_;
};

}  // namespace

Expected<void> quantize(const checkpoint::Checkpoint& source, const fs::path& directory,
                        ThreadPool& pool, const QuantizeOptions& options) {
    return Quantizer(source, directory, pool, options).run();
}

}  // namespace espalier::model
