// SPDX-License-Identifier: Apache-2.0
// A model as it lies on disk: a Hugging Face directory with one or many safetensors files, or GGUF
// files; its configuration, its generation defaults and its tensors by their published names.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/gguf.hpp"
#include "base/numeric.hpp"
#include "checkpoint/eagle3_config.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

// A tensor in a mapped file.
struct Tensor {
    std::string name;
    const TensorFile* file = nullptr;
    StoredType type = StoredType::f32;
    BlockCode block = BlockCode::none;  // when type is `blocks`
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;  // not necessarily aligned to the element

    std::string_view type_name() const {
        return type == StoredType::blocks ? facts_of(block).name : name_of(type);
    }
    // About what it takes once packed: blocks become codes and scales.
    std::uint64_t loaded_bytes() const;
};

// Tensors of a model that also sees which are not read, by the first letters of their names.
struct LeftOut {
    std::string_view prefix;
    std::int64_t tensors = 0;
    std::uint64_t bytes = 0;
};

class Checkpoint {
  public:
    // Directory, ORG/NAME or a GGUF file. Reads headers only; tensors are mapped.
    static Expected<Checkpoint> open(std::string_view model);
    // The same directory with its tensors read from `weights` instead of the directory's files.
    static Expected<Checkpoint> open(std::string_view model, MappedFile weights);
    // An EAGLE3 draft; config() describes its one layer.
    static Expected<Checkpoint> open_eagle3(std::string_view draft);

    // The model's directory, or its GGUF file (the first of several).
    const std::filesystem::path& directory() const { return directory_; }
    bool is_gguf() const { return is_gguf_name(directory_.native()); }
    const ModelConfig& config() const { return config_; }
    const std::optional<Eagle3Config>& eagle3() const { return eagle3_; }  // of a draft
    const GenerationDefaults& generation() const { return generation_; }
    const std::vector<std::unique_ptr<TensorFile>>& files() const { return files_; }

    bool has(std::string_view name) const;  // name without the config's tensor_prefix
    // The tensor as it lies, shape and dtype unchecked; nothing if there is none.
    std::optional<Tensor> stored(std::string_view name) const;
    // The tensor, or an error that names file, tensor and what differs: missing, wrong shape, wrong
    // dtype.
    Expected<Tensor> find(std::string_view name, std::initializer_list<std::int64_t> shape,
                          std::initializer_list<StoredType> types) const;
    // Names of all tensors (prefix removed), vision tensors left out.
    std::vector<std::string> names() const;
    // Bytes of the tensors in names(), and about those that they take once packed.
    std::uint64_t total_bytes() const;
    std::uint64_t loaded_bytes() const;
    // Every prefix of tensors that models of this kind may have unread, present here or not.
    const std::vector<LeftOut>& left_out() const { return left_out_; }

  private:
    struct Place {
        const TensorFile* file;
        const TensorEntry* entry;
    };
    Checkpoint() = default;
    // Finds the directory and reads its config.json.
    Expected<std::string> find_config(std::string_view model);
    // All but the tensors.
    static Expected<Checkpoint> open_texts(std::string_view model);
    // ModelOpt's hf_quant_config.json, where config.json says nothing of it.
    Expected<void> read_quantization_file();
    Expected<void> read_generation_config();
    Expected<void> open_files();
    static Expected<Checkpoint> open_gguf_files(const std::filesystem::path& path);
    Tensor tensor_at(std::string_view name, const Place& place) const;
    Expected<void> open_shards();
    Expected<const TensorFile*> open_file(const std::string& name);
    Expected<void> add_all(TensorFile file);
    Expected<void> add(std::string_view tensor, const TensorFile* file, const TensorEntry* entry);
    Expected<void> add_one(std::string_view tensor, const TensorFile* file,
                           const TensorEntry* entry);

    std::filesystem::path directory_;
    ModelConfig config_;
    std::optional<Eagle3Config> eagle3_;
    GenerationDefaults generation_;
    std::vector<std::unique_ptr<TensorFile>> files_;
    std::vector<LeftOut> left_out_;
    std::deque<TensorEntry> split_;                    // experts out of tensors that joined them
    std::map<std::string, Place, std::less<>> where_;  // by name without tensor_prefix
};

}  // namespace espalier::checkpoint
