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
#include "model/weight_reader.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredType;
using checkpoint::TensorSpec;

constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;  // of a tokenizer
constexpr const char* kMarker = "quantize.txt";                // what is being written here

// One tensor or matrix of the source, and the tensors it becomes, one after another.
struct Piece {
    enum class Kind { copied, rounded, widened } kind = Kind::copied;
    WeightCode code = WeightCode::int4;  // of what is rounded
    std::string name = {};               // of the tensor, or of the matrix without ".weight"
    std::int64_t n = 0, k = 0;
    std::vector<TensorSpec> becomes = {};
    std::uint64_t source_bytes = 0;
};

TensorSpec spec_of(std::string name, StoredType type, std::vector<std::int64_t> shape) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.type = type;
    spec.shape = std::move(shape);
    return spec;
}

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
        split();
        ESPALIER_RETURN_IF_ERROR(take_directory());
        for (std::size_t i = 0; i < shards_.size(); ++i) ESPALIER_RETURN_IF_ERROR(write_shard(i));
        if (shards_.size() > 1) {
            std::uint64_t total = 0;
            for (const checkpoint::Shard& shard : heads_)
                for (const TensorSpec& spec : shard.tensors) total += spec.bytes();
            ESPALIER_RETURN_IF_ERROR(
                put("model.safetensors.index.json", checkpoint::index_json(heads_, total)));
        }
        ESPALIER_RETURN_IF_ERROR(copy_texts());
        ESPALIER_ASSIGN_OR_RETURN(
            const std::string config,
            read_text_file(source_.directory() / "config.json", kMaxTextBytes));
        ESPALIER_RETURN_IF_ERROR(
            put("config.json",
                checkpoint::quantized_config_json(config, scheme(options_.code), head_scheme())));
        std::error_code ignored;
        fs::remove(directory_ / kMarker, ignored);
        return {};
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
                 .becomes = {spec_of(full(name) + ".weight", StoredType::bf16, {n, k})},
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
        TensorSpec scales = spec_of(full(as) + ".weight_scale", StoredType::bf16, {n, groups});
        if (code == WeightCode::int4)
            piece.becomes = {
                spec_of(full(as) + ".weight_packed", StoredType::i32, {n, (k + 7) / 8}),
                std::move(scales), spec_of(full(as) + ".weight_shape", StoredType::i32, {2})};
        else
            piece.becomes = {spec_of(full(as) + ".weight", StoredType::i8, {n, k}),
                             std::move(scales)};
        pieces_.push_back(std::move(piece));
    }

    std::string full(const std::string& name) const {
        return fmt::format("{}{}", source_.config().tensor_prefix(), name);
    }

    void add_copy(const std::string& name) {
        const checkpoint::Tensor tensor = *source_.stored(name);
        Piece piece{.name = name, .source_bytes = tensor.bytes.size()};
        piece.becomes = {spec_of(full(name), tensor.type, tensor.shape)};
        pieces_.push_back(std::move(piece));
    }

    // Pieces into files of at most the limit, or of one piece.
    void split() {
        std::uint64_t used = 0;
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            std::uint64_t bytes = 0;
            for (const TensorSpec& spec : pieces_[i].becomes) bytes += spec.bytes();
            if (shards_.empty() || used + bytes > options_.shard_limit_bytes) {
                shards_.push_back({i, i});
                heads_.emplace_back();
                used = 0;
            }
            used += bytes;
            shards_.back().second = i + 1;
            for (const TensorSpec& spec : pieces_[i].becomes) heads_.back().tensors.push_back(spec);
            total_ += pieces_[i].source_bytes;
        }
        for (std::size_t i = 0; i < heads_.size(); ++i)
            heads_[i].file = checkpoint::shard_name(i, heads_.size());
    }

    // New, empty, or begun by the same command.
    Expected<void> take_directory() {
        std::error_code error;
        fs::create_directories(directory_, error);
        if (error)
            return fail(ErrorKind::io, "{}: cannot make it: {}", directory_.string(),
                        error.message());
        const std::string mark = fmt::format(
            "{}{} of {}, {} bytes in {} files\n", name_of(options_.code),
            options_.head_int8 ? " and an int8 head" : "",
            fs::weakly_canonical(source_.directory(), error).string(), total_, heads_.size());
        if (!fs::exists(directory_ / kMarker)) {
            if (!fs::is_empty(directory_, error) || error)
                return fail(ErrorKind::invalid, "{}: not empty, and nothing that quantize began",
                            directory_.string());
            return checkpoint::write_text(directory_ / kMarker, mark);
        }
        ESPALIER_ASSIGN_OR_RETURN(const std::string begun,
                                  read_text_file(directory_ / kMarker, 1 << 16));
        if (begun != mark)
            return fail(ErrorKind::invalid, "{}: holds the beginning of another model: {}",
                        directory_.string(), begun.substr(0, 300));
        return {};
    }

    Expected<void> write_shard(std::size_t index) {
        const auto [first, end] = shards_[index];
        const fs::path path = directory_ / heads_[index].file;
        const fs::path part = path.string() + ".part";
        std::error_code ignored;
        fs::remove(part, ignored);
        const bool whole = fs::exists(path);  // renamed only once it was
        std::optional<checkpoint::OutputFile> file;
        if (!whole) {
            file.emplace(part);
            const std::string head = checkpoint::safetensors_head(heads_[index]);
            ESPALIER_RETURN_IF_ERROR(file->write(head.data(), head.size()));
        }
        for (std::size_t i = first; i < end; ++i) {
            if (file) ESPALIER_RETURN_IF_ERROR(write_piece(pieces_[i], *file));
            done_ += pieces_[i].source_bytes;
            if (options_.progress) options_.progress(done_, total_);
        }
        if (!file) return {};
        ESPALIER_RETURN_IF_ERROR(file->close());
        return rename(part, path);
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

    Expected<void> copy_texts() {
        std::error_code error;
        for (const auto& item : fs::directory_iterator(source_.directory(), error)) {
            const std::string name = item.path().filename().string();
            const std::string extension = item.path().extension().string();
            const bool text = extension == ".json" || extension == ".jinja" ||
                              extension == ".txt" || extension == ".model" || extension == ".md";
            if (!text || name == "config.json" || name == "hf_quant_config.json" ||
                name.ends_with(".index.json") || !item.is_regular_file())
                continue;
            ESPALIER_ASSIGN_OR_RETURN(const std::string bytes,
                                      read_text_file(item.path(), kMaxTextBytes));
            ESPALIER_RETURN_IF_ERROR(put(name, bytes));
        }
        return {};
    }

    // A whole file, in one go.
    Expected<void> put(const std::string& name, std::string_view text) {
        const fs::path part = directory_ / (name + ".part");
        std::error_code ignored;
        fs::remove(part, ignored);
        ESPALIER_RETURN_IF_ERROR(checkpoint::write_text(part, text));
        return rename(part, directory_ / name);
    }

    static Expected<void> rename(const fs::path& from, const fs::path& to) {
        std::error_code error;
        fs::rename(from, to, error);
        if (error)
            return fail(ErrorKind::io, "{}: cannot rename: {}", to.string(), error.message());
        return {};
    }

    const checkpoint::Checkpoint& source_;
    fs::path directory_;
    ThreadPool& pool_;
    const QuantizeOptions& options_;
    std::vector<Piece> pieces_;
    std::vector<std::pair<std::size_t, std::size_t>> shards_;  // [first, end) of pieces
    std::vector<checkpoint::Shard> heads_;
    std::uint64_t total_ = 0, done_ = 0;
};

}  // namespace

Expected<void> quantize(const checkpoint::Checkpoint& source, const fs::path& directory,
                        ThreadPool& pool, const QuantizeOptions& options) {
    return Quantizer(source, directory, pool, options).run();
}

}  // namespace espalier::model
