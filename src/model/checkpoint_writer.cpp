// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint_writer.hpp"

#include <optional>
#include <system_error>

#include "base/mapped_file.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSpec;

Expected<void> name_file(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::rename(from, to, error);
    if (error) return fail(ErrorKind::io, "{}: cannot rename: {}", to.string(), error.message());
    return {};
}

class DirectoryWriter {
  public:
    DirectoryWriter(const fs::path& directory, const WrittenCheckpoint& checkpoint)
        : directory_(directory), checkpoint_(checkpoint) {}

    Expected<void> run() {
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
        for (const auto& [name, text] : checkpoint_.texts)
            ESPALIER_RETURN_IF_ERROR(put(name, text));
        std::error_code ignored;
        fs::remove(marker(), ignored);
        return {};
    }

  private:
    // File that says what is being written here.
    fs::path marker() const { return directory_ / (checkpoint_.command + ".txt"); }

    // Pieces into files of at most the limit, or of one piece.
    void split() {
        std::uint64_t used = 0;
        for (std::size_t i = 0; i < checkpoint_.pieces.size(); ++i) {
            const WrittenPiece& piece = checkpoint_.pieces[i];
            std::uint64_t bytes = 0;
            for (const TensorSpec& spec : piece.tensors) bytes += spec.bytes();
            if (shards_.empty() || used + bytes > checkpoint_.shard_limit_bytes) {
                shards_.push_back({i, i});
                heads_.emplace_back();
                used = 0;
            }
            used += bytes;
            shards_.back().second = i + 1;
            for (const TensorSpec& spec : piece.tensors) heads_.back().tensors.push_back(spec);
            total_ += piece.source_bytes;
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
        const std::string mark =
            fmt::format("{}, {} bytes in {} files\n", checkpoint_.what, total_, heads_.size());
        if (!fs::exists(marker())) {
            if (!fs::is_empty(directory_, error) || error)
                return fail(ErrorKind::invalid, "{}: not empty, and nothing that {} began",
                            directory_.string(), checkpoint_.command);
            return checkpoint::write_text(marker(), mark);
        }
        ESPALIER_ASSIGN_OR_RETURN(const std::string begun, read_text_file(marker(), 1 << 16));
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
            if (file) ESPALIER_RETURN_IF_ERROR(checkpoint_.pieces[i].write(*file));
            done_ += checkpoint_.pieces[i].source_bytes;
            if (checkpoint_.progress) checkpoint_.progress(done_, total_);
        }
        if (!file) return {};
        ESPALIER_RETURN_IF_ERROR(file->close());
        return name_file(part, path);
    }

    // A whole file, in one go.
    Expected<void> put(const std::string& name, std::string_view text) {
        const fs::path part = directory_ / (name + ".part");
        std::error_code ignored;
        fs::remove(part, ignored);
        ESPALIER_RETURN_IF_ERROR(checkpoint::write_text(part, text));
        return name_file(part, directory_ / name);
    }

    const fs::path& directory_;
    const WrittenCheckpoint& checkpoint_;
    std::vector<std::pair<std::size_t, std::size_t>> shards_;  // [first, end) of pieces
    std::vector<checkpoint::Shard> heads_;
    std::uint64_t total_ = 0, done_ = 0;
};

}  // namespace

Expected<void> write_checkpoint(const fs::path& directory, const WrittenCheckpoint& checkpoint) {
    return DirectoryWriter(directory, checkpoint).run();
}

TensorSpec tensor_spec(std::string name, checkpoint::StoredType type,
                       std::vector<std::int64_t> shape) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.type = type;
    spec.shape = std::move(shape);
    return spec;
}

}  // namespace espalier::model
