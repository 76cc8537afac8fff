// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/json.hpp"
#include "checkpoint/config_words.hpp"
#include "checkpoint/gguf_file.hpp"
#include "checkpoint/joined_experts.hpp"
#include "checkpoint/plain_name.hpp"
#include "checkpoint/quantization.hpp"
#include "checkpoint/safetensors.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxConfigBytes = 16u << 20;
constexpr std::size_t kMaxIndexBytes = 256u << 20;  // Kimi K2's, with 140,000 tensors, has 15 MB
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Also true of a link that points nowhere: opening it says so.
bool is_there(const fs::path& path) {
    std::error_code error;
    return fs::exists(fs::symlink_status(path, error));
}

// Formats that hold code or that we do not read, so that the error can name what is there.
std::string other_weights_in(const fs::path& directory) {
    std::error_code error;
    for (const auto& item : fs::directory_iterator(directory, error)) {
        const std::string extension = item.path().extension().string();
        for (const char* known : {".bin", ".pt", ".pth", ".gguf", ".h5", ".safetensors"})
            if (extension == known) return item.path().filename().string();
    }
    return "";
}

tl::unexpected<Error> name_gguf(const fs::path& directory, const std::string& file) {
    return fail(ErrorKind::invalid, "{}: no safetensors checkpoint; open its GGUF file by name: {}",
                directory.string(), (directory / file).string());
}

tl::unexpected<Error> no_weights(const fs::path& directory) {
    const std::string other = other_weights_in(directory);
    if (is_gguf_name(other)) return name_gguf(directory, other);
    if (other.empty())
        return fail(ErrorKind::not_found, "{}: neither {} nor {}", directory.string(), kSingleFile,
                    kIndexFile);
    return fail(ErrorKind::unsupported,
                "{}: neither {} nor {}; '{}' is not opened: weights are read only from these two",
                directory.string(), kSingleFile, kIndexFile, other);
}

// tensor → file name, as the index promises; every file name checked.
using WeightMap = std::map<std::string, std::string, std::less<>>;

Expected<WeightMap> read_index(const fs::path& path) {
    ESPALIER_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxIndexBytes));
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(text, kIndexFile));
    const auto list = document.is_object() ? document.find("weight_map") : document.end();
    if (list == document.end() || !list->is_object() || list->empty())
        return fail(ErrorKind::invalid, "{}: no weight_map of tensor names to file names",
                    kIndexFile);
    WeightMap map;
    for (const auto& [tensor, file] : list->items()) {
        const std::string* name = file.get_ptr<const std::string*>();
        if (name == nullptr || !is_plain_name(*name) || !name->ends_with(".safetensors"))
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' is promised in {}, expected the plain name of a "
                        ".safetensors file in the same directory",
                        kIndexFile, tensor, file.dump().substr(0, 200));
        map.emplace(tensor, *name);
    }
    return map;
}

}  // namespace

Expected<std::string> Checkpoint::find_config(std::string_view model) {
    ESPALIER_ASSIGN_OR_RETURN(directory_, resolve_model_path(model));
    const fs::path config_path = directory_ / "config.json";
    if (const std::string other = other_weights_in(directory_);
        !is_there(config_path) && is_gguf_name(other))
        return name_gguf(directory_, other);
    if (!is_there(config_path) && is_there(directory_ / "params.json"))
        return fail(
            ErrorKind::unsupported,
            "{}: params.json and no config.json: Mistral's own files are not read, Hugging "
            "Face directories of its models are; its EAGLE heads (several MLA layers behind "
            "one product) are not supported",
            directory_.string());
    if (!is_there(config_path))
        return fail(ErrorKind::not_found, "{}: no config.json; is this a model directory?",
                    directory_.string());
    return read_text_file(config_path, kMaxConfigBytes);
}

Expected<Checkpoint> Checkpoint::open_texts(std::string_view model) {
    Checkpoint result;
    ESPALIER_ASSIGN_OR_RETURN(const std::string config_text, result.find_config(model));
    ESPALIER_ASSIGN_OR_RETURN(result.config_, parse_model_config(config_text, "config.json"));
    ESPALIER_RETURN_IF_ERROR(result.read_quantization_file());
    ESPALIER_RETURN_IF_ERROR(result.read_generation_config());
    if (const WrapperWords* wrapper = words_of(result.config_.wrapper))
        for (const std::string_view prefix : wrapper->vision_prefixes)
            if (!prefix.empty()) result.left_out_.push_back({prefix});
    return result;
}

Expected<Checkpoint> Checkpoint::open_gguf_files(const fs::path& path) {
    ESPALIER_ASSIGN_OR_RETURN(GgufModel model, open_gguf(path));
    Checkpoint result;
    result.directory_ = path;
    result.config_ = std::move(model.config);
    result.generation_ = std::move(model.generation);
    for (TensorFile& file : model.files) ESPALIER_RETURN_IF_ERROR(result.add_all(std::move(file)));
    return result;
}

Expected<Checkpoint> Checkpoint::open(std::string_view model) {
    if (is_gguf_name(model)) return open_gguf_files(fs::path(model));
    ESPALIER_ASSIGN_OR_RETURN(Checkpoint result, open_texts(model));
    ESPALIER_RETURN_IF_ERROR(result.open_files());
    return result;
}

Expected<Checkpoint> Checkpoint::open(std::string_view model, MappedFile weights) {
    ESPALIER_ASSIGN_OR_RETURN(Checkpoint result, open_texts(model));
    ESPALIER_ASSIGN_OR_RETURN(TensorFile file, read_safetensors(std::move(weights)));
    ESPALIER_RETURN_IF_ERROR(result.add_all(std::move(file)));
    return result;
}

Expected<Checkpoint> Checkpoint::open_eagle3(std::string_view draft) {
    if (is_gguf_name(draft))
        return fail(ErrorKind::unsupported,
                    "{}: a GGUF file; drafts are read as EAGLE3 safetensors directories", draft);
    Checkpoint result;
    ESPALIER_ASSIGN_OR_RETURN(const std::string config_text, result.find_config(draft));
    ESPALIER_ASSIGN_OR_RETURN(result.eagle3_, parse_eagle3_config(config_text, "config.json"));
    result.config_ = result.eagle3_->layer;
    ESPALIER_RETURN_IF_ERROR(result.open_files());
    return result;
}

Expected<void> Checkpoint::read_quantization_file() {
    if (config_.fp8_block || config_.quantization.layout != QuantizedLayout::none) return {};
    constexpr const char* kName = "hf_quant_config.json";
    ESPALIER_ASSIGN_OR_RETURN(const auto text,
                              read_optional_text_file(directory_ / kName, kMaxConfigBytes));
    if (!text) return {};
    return read_modelopt_file(*text, kName, config_);
}

Expected<void> Checkpoint::read_generation_config() {
    ESPALIER_ASSIGN_OR_RETURN(
        const auto text,
        read_optional_text_file(directory_ / "generation_config.json", kMaxConfigBytes));
    if (!text) return {};
    ESPALIER_ASSIGN_OR_RETURN(generation_,
                              parse_generation_config(*text, "generation_config.json"));
    // Kimi K2 names one end token in either file; both end a text.
    for (const std::int32_t id : generation_.eos_token_ids) {
        if (id >= config_.vocab_size)
            return fail(ErrorKind::invalid,
                        "generation_config.json: eos_token_id is {} of a vocabulary of {}", id,
                        config_.vocab_size);
        auto& ids = config_.eos_token_ids;
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    return {};
}

Expected<void> Checkpoint::open_files() {
    const bool single = is_there(directory_ / kSingleFile);
    const bool sharded = is_there(directory_ / kIndexFile);
    if (single && sharded)
        return fail(ErrorKind::invalid, "{}: has both {} and {}; which one is meant cannot be told",
                    directory_.string(), kSingleFile, kIndexFile);
    if (!single && !sharded) return no_weights(directory_);
    if (single) {
        ESPALIER_ASSIGN_OR_RETURN(TensorFile file, open_safetensors(directory_ / kSingleFile));
        return add_all(std::move(file));
    }
    return open_shards();
}

// A shard's tensors all count: the index says which files there are and is a promise to keep, but
// published converters leave scales out of it.
Expected<void> Checkpoint::open_shards() {
    ESPALIER_ASSIGN_OR_RETURN(const WeightMap promised, read_index(directory_ / kIndexFile));
    std::map<std::string_view, const TensorFile*> opened;
    for (const auto& [tensor, name] : promised) {
        const TensorFile*& file = opened[name];
        if (file != nullptr) continue;
        if (!is_there(directory_ / name))
            return fail(ErrorKind::not_found, "{}: missing, but {} promises tensor '{}' in it",
                        (directory_ / name).string(), kIndexFile, tensor);
        ESPALIER_ASSIGN_OR_RETURN(file, open_file(name));
    }
    for (const auto& [tensor, name] : promised) {
        if (opened[name]->tensors().contains(tensor)) continue;
        const auto holder = std::ranges::find_if(files_, [&tensor = tensor](const auto& file) {
            return file->tensors().contains(tensor);
        });
        return fail(ErrorKind::not_found, "{}: no tensor '{}', which {} promises there{}", name,
                    tensor, kIndexFile,
                    holder == files_.end() ? "" : fmt::format("; it is in {}", (*holder)->name()));
    }
    for (const auto& [name, file] : opened)
        for (const auto& [tensor, entry] : file->tensors()) {
            const auto promise = promised.find(tensor);
            if (promise == promised.end() || promise->second == name)
                ESPALIER_RETURN_IF_ERROR(add(tensor, file, &entry));
        }
    return {};
}

Expected<const TensorFile*> Checkpoint::open_file(const std::string& name) {
    ESPALIER_ASSIGN_OR_RETURN(TensorFile file, open_safetensors(directory_ / name));
    files_.push_back(std::make_unique<TensorFile>(std::move(file)));
    return files_.back().get();
}

Expected<void> Checkpoint::add_all(TensorFile file) {
    files_.push_back(std::make_unique<TensorFile>(std::move(file)));
    const TensorFile* kept = files_.back().get();
    for (const auto& [tensor, entry] : kept->tensors())
        ESPALIER_RETURN_IF_ERROR(add(tensor, kept, &entry));
    return {};
}

Expected<void> Checkpoint::add(std::string_view tensor, const TensorFile* file,
                               const TensorEntry* entry) {
    if (!is_joined_experts(tensor)) return add_one(tensor, file, entry);
    ESPALIER_ASSIGN_OR_RETURN(auto parts, split_joined_experts(tensor, *entry, file->name()));
    for (auto& [name, part] : parts) {
        split_.push_back(std::move(part));
        ESPALIER_RETURN_IF_ERROR(add_one(name, file, &split_.back()));
    }
    return {};
}

Expected<void> Checkpoint::add_one(std::string_view tensor, const TensorFile* file,
                                   const TensorEntry* entry) {
    const std::string_view prefix = config_.tensor_prefix();
    if (tensor.starts_with(prefix)) {
        const auto [at, added] = where_.emplace(tensor.substr(prefix.size()), Place{file, entry});
        if (added) return {};
        return fail(ErrorKind::invalid, "tensor '{}' is in {} and in {}{}", tensor,
                    at->second.file->name(), file->name(),
                    is_gguf() ? "" : fmt::format(", and {} promises neither", kIndexFile));
    }
    for (LeftOut& part : left_out_) {
        if (!tensor.starts_with(part.prefix)) continue;
        ++part.tensors;
        part.bytes += entry->end - entry->begin;
        return {};
    }
    std::vector<std::string_view> known;
    for (const LeftOut& part : left_out_) known.push_back(part.prefix);
    return fail(ErrorKind::unsupported,
                "{}: tensor '{}' begins neither with '{}' nor with a vision part's {}",
                file->name(), tensor, prefix, fmt::join(known, ", "));
}

bool Checkpoint::has(std::string_view name) const { return where_.find(name) != where_.end(); }

std::optional<Tensor> Checkpoint::stored(std::string_view name) const {
    const auto found = where_.find(name);
    if (found == where_.end()) return std::nullopt;
    return tensor_at(name, found->second);
}

Tensor Checkpoint::tensor_at(std::string_view name, const Place& place) const {
    const TensorEntry& entry = *place.entry;
    return {.name = std::string(name),
            .file = place.file,
            .type = entry.type,
            .block = entry.block,
            .shape = entry.shape,
            .bytes = place.file->bytes_of(entry)};
}

Expected<Tensor> Checkpoint::find(std::string_view name, std::initializer_list<std::int64_t> shape,
                                  std::initializer_list<StoredType> types) const {
    const auto found = where_.find(name);
    if (found == where_.end())
        return fail(ErrorKind::not_found, "{}: no tensor '{}{}' in its {} file(s)",
                    directory_.string(), config_.tensor_prefix(), name, files_.size());
    const auto& [file, entry] = found->second;
    if (!std::equal(shape.begin(), shape.end(), entry->shape.begin(), entry->shape.end()))
        return fail(ErrorKind::invalid, "{}: tensor '{}{}' has shape [{}], expected [{}]",
                    file->name(), config_.tensor_prefix(), name, fmt::join(entry->shape, ", "),
                    fmt::join(shape, ", "));
    if (std::find(types.begin(), types.end(), entry->type) == types.end()) {
        std::vector<std::string_view> expected;
        for (const StoredType type : types)
            if (type != StoredType::blocks) expected.push_back(name_of(type));
        if (is_gguf())
            for (const BlockFacts& facts : std::span(kBlocks).subspan(1))
                expected.push_back(facts.name);
        return fail(ErrorKind::unsupported, "{}: tensor '{}{}' has dtype {}, expected {}",
                    file->name(), config_.tensor_prefix(), name, entry->type_name(),
                    fmt::join(expected, " or "));
    }
    return tensor_at(name, found->second);
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> result;
    result.reserve(where_.size());
    for (const auto& [name, place] : where_) result.push_back(name);
    return result;
}

std::uint64_t Checkpoint::total_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [name, place] : where_) bytes += place.entry->end - place.entry->begin;
    return bytes;
}

std::uint64_t Checkpoint::loaded_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [name, place] : where_) bytes += tensor_at(name, place).loaded_bytes();
    return bytes;
}

std::uint64_t Tensor::loaded_bytes() const {
    if (type != StoredType::blocks) return bytes.size();
    const BlockFacts& facts = facts_of(block);
    return static_cast<std::uint64_t>(static_cast<double>(bytes.size()) *
                                      facts.format.bits_per_weight() * facts.weights /
                                      (8.0 * facts.bytes));
}

}  // namespace espalier::checkpoint
