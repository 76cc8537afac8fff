// SPDX-License-Identifier: Apache-2.0
// Lays a synthetic model out in files and streams the tensors into them; see synthetic.hpp.
#include "checkpoint/synthetic.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/mapped_file.hpp"
#include "checkpoint/gpu_weights.hpp"
#include "checkpoint/safetensors_writer.hpp"

namespace espalier::checkpoint {
namespace {

// One unit of generation (a task) and of writing: 32 tasks per write keep two to sixteen cores busy
// while the buffer stays at 8 MiB for f32.
constexpr std::uint64_t kTaskElements = 64 * 1024;
constexpr std::uint64_t kTasksPerWrite = 32;

std::vector<Shard> split_into_shards(std::vector<TensorSpec> tensors, std::uint64_t limit_bytes) {
    std::vector<Shard> shards(1);
    std::uint64_t used = 0;
    for (TensorSpec& spec : tensors) {
        if (limit_bytes > 0 && used > 0 && used + spec.bytes() > limit_bytes) {
            shards.emplace_back();
            used = 0;
        }
        used += spec.bytes();
        shards.back().tensors.push_back(std::move(spec));
    }
    for (std::size_t i = 0; i < shards.size(); ++i) {
        shards[i].file = shard_name(i, shards.size());
        // The reference's order: wide elements first, which keeps every tensor aligned.
        std::stable_sort(
            shards[i].tensors.begin(), shards[i].tensors.end(),
            [](const auto& a, const auto& b) { return bytes_of(a.type) > bytes_of(b.type); });
    }
    return shards;
}

struct Counter {
    const SyntheticProgress& report;
    std::uint64_t total = 0;
    std::uint64_t done = 0;

    void add(std::uint64_t bytes) {
        done += bytes;
        if (report) report(done, total);
    }
};

Expected<void> write_tensor(const TensorSpec& spec, std::uint64_t seed, OutputFile& file,
                            std::vector<std::byte>& buffer, ThreadPool& pool, Counter& counter) {
    const std::uint64_t elements = spec.elements();
    const std::uint64_t width = bytes_of(spec.type);
    for (std::uint64_t first = 0; first < elements; first += kTaskElements * kTasksPerWrite) {
        const std::uint64_t count = std::min(elements - first, kTaskElements * kTasksPerWrite);
        const auto tasks = static_cast<std::int64_t>((count + kTaskElements - 1) / kTaskElements);
        pool.run(tasks, [&](std::int64_t task, int) {
            const std::uint64_t begin = static_cast<std::uint64_t>(task) * kTaskElements;
            synthetic_values(spec, seed, first + begin, std::min(count - begin, kTaskElements),
                             buffer.data() + begin * width);
        });
        ESPALIER_RETURN_IF_ERROR(
            file.write(buffer.data(), static_cast<std::size_t>(count * width)));
        counter.add(count * width);
    }
    return {};
}

Expected<void> write_shards(std::span<const Shard> shards, std::uint64_t seed,
                            const std::filesystem::path& directory, ThreadPool& pool,
                            Counter& counter) {
    std::vector<std::byte> buffer(kTaskElements * kTasksPerWrite * sizeof(std::int64_t));
    for (const Shard& shard : shards) {
        OutputFile file(directory / shard.file);
        const std::string head = safetensors_head(shard);
        ESPALIER_RETURN_IF_ERROR(file.write(head.data(), head.size()));
        for (const TensorSpec& spec : shard.tensors)
            ESPALIER_RETURN_IF_ERROR(write_tensor(spec, seed, file, buffer, pool, counter));
        ESPALIER_RETURN_IF_ERROR(file.close());
    }
    return {};
}

Expected<void> make_empty_directory(const std::filesystem::path& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error)
        return fail(ErrorKind::io, "{}: cannot make it: {}", directory.string(), error.message());
    const bool empty = std::filesystem::is_empty(directory, error);
    if (error)
        return fail(ErrorKind::io, "{}: cannot read it: {}", directory.string(), error.message());
    if (!empty)
        return fail(ErrorKind::invalid,
                    "{}: not empty; a model is only written into a new directory",
                    directory.string());
    return {};
}

struct TokenizerFiles {
    std::string tokenizer, config;
};
Expected<TokenizerFiles> tokenizer_files(const SyntheticModel& model) {
    if (model.tokenizer.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(std::string made,
                                  synthetic_tokenizer_json(model.config.vocab_size));
        return TokenizerFiles{std::move(made), synthetic_tokenizer_config_json()};
    }
    constexpr std::size_t kMost = std::size_t{256} << 20;  // Kimi's has 20 MB
    TokenizerFiles files;
    ESPALIER_ASSIGN_OR_RETURN(files.tokenizer,
                              read_text_file(model.tokenizer / "tokenizer.json", kMost));
    ESPALIER_ASSIGN_OR_RETURN(files.config,
                              read_text_file(model.tokenizer / "tokenizer_config.json", kMost));
    return files;
}

// Files of a model's directory beside its tensors.
class TextFiles {
  public:
    // A configuration that could not be read back is refused before a byte is written.
    static Expected<TextFiles> make(const SyntheticModel& model) {
        TextFiles files;
        files.config_ = config_json_of(model.config, model.dtype);
        ESPALIER_RETURN_IF_ERROR(parse_model_config(files.config_, "config.json"));
        ESPALIER_ASSIGN_OR_RETURN(files.tokenizer_, tokenizer_files(model));
        files.generation_ = generation_config_json_of(model.config);
        return files;
    }
    Expected<void> write(const std::filesystem::path& directory) const {
        ESPALIER_RETURN_IF_ERROR(write_text(directory / "tokenizer.json", tokenizer_.tokenizer));
        ESPALIER_RETURN_IF_ERROR(
            write_text(directory / "tokenizer_config.json", tokenizer_.config));
        ESPALIER_RETURN_IF_ERROR(write_text(directory / "generation_config.json", generation_));
        return write_text(directory / "config.json", config_);
    }

  private:
    std::string config_, generation_;
    TokenizerFiles tokenizer_;
};

std::vector<TensorSpec> tensors_of(const SyntheticModel& model) {
    return list_tensors(model.config, {model.dtype, model.repeat_mtp_embeddings});
}

}  // namespace

Expected<void> write_synthetic(const SyntheticModel& model, const std::filesystem::path& directory,
                               ThreadPool& pool, const SyntheticProgress& progress) {
    ESPALIER_ASSIGN_OR_RETURN(const TextFiles texts, TextFiles::make(model));
    ESPALIER_RETURN_IF_ERROR(make_empty_directory(directory));

    Counter counter{progress};
    auto tensors = tensors_of(model);
    for (const TensorSpec& spec : tensors) counter.total += spec.bytes();
    const std::vector<Shard> shards =
        split_into_shards(std::move(tensors), model.shard_limit_bytes);

    ESPALIER_RETURN_IF_ERROR(write_shards(shards, model.seed, directory, pool, counter));
    if (shards.size() > 1)
        ESPALIER_RETURN_IF_ERROR(write_text(directory / "model.safetensors.index.json",
                                            index_json(shards, counter.total)));
    return texts.write(directory);
}

Expected<Checkpoint> synthetic_on_gpu(const SyntheticModel& model,
                                      const std::filesystem::path& directory) {
    ESPALIER_ASSIGN_OR_RETURN(const TextFiles texts, TextFiles::make(model));
    ESPALIER_RETURN_IF_ERROR(make_empty_directory(directory));
    ESPALIER_RETURN_IF_ERROR(texts.write(directory));
    const std::vector<Shard> shards = split_into_shards(tensors_of(model), 0);
    ESPALIER_ASSIGN_OR_RETURN(MappedFile weights, fill_on_gpu(shards.front(), model.seed));
    return Checkpoint::open(directory.string(), std::move(weights));
}

Expected<void> write_synthetic_draft(const SyntheticDraft& draft,
                                     const std::filesystem::path& directory, ThreadPool& pool,
                                     const SyntheticProgress& progress) {
    const std::string config_text = eagle3_config_json_of(draft.config, draft.tensors.dtype);
    ESPALIER_RETURN_IF_ERROR(parse_eagle3_config(config_text, "config.json"));
    ESPALIER_RETURN_IF_ERROR(make_empty_directory(directory));
    Counter counter{progress};
    auto tensors = list_eagle3_tensors(draft.config, draft.tensors);
    for (const TensorSpec& spec : tensors) counter.total += spec.bytes();
    const std::vector<Shard> shards = split_into_shards(std::move(tensors), 0);
    ESPALIER_RETURN_IF_ERROR(write_shards(shards, draft.seed, directory, pool, counter));
    return write_text(directory / "config.json", config_text);
}

}  // namespace espalier::checkpoint
