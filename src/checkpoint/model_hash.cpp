// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_hash.hpp"

#include <algorithm>
#include <span>

#include "base/content_hash.hpp"
#include "base/gguf.hpp"
#include "base/mapped_file.hpp"
#include "checkpoint/tensor_hash.hpp"

namespace espalier::checkpoint {
namespace {

constexpr std::size_t kWholeBytes = std::size_t{1} << 20;
constexpr std::size_t kStrideBytes = std::size_t{1} << 18;
constexpr std::size_t kPieceBytes = std::size_t{1} << 12;
constexpr const char* kFiles[] = {"config.json", "tokenizer_config.json", "tokenizer.json",
                                  "tiktoken.model"};

// Metadata whose keys begin so.
Expected<void> add_metadata(ContentHash& hash, const std::filesystem::path& path,
                            std::string_view prefix) {
    ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    ESPALIER_ASSIGN_OR_RETURN(const GgufHeader header,
                              parse_gguf(file.bytes(), path.filename().string()));
    for (const auto& [key, value] : header.values) {
        if (!key.starts_with(prefix)) continue;
        hash.add(key);
        hash.add(value.bytes);
    }
    return {};
}

// A file that is not there counts by its name.
Expected<void> add_files(ContentHash& hash, const std::filesystem::path& directory,
                         std::span<const char* const> names) {
    for (const char* name : names) {
        const auto path = directory / name;
        hash.add(std::string_view(name));
        if (!std::filesystem::exists(path)) continue;
        ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
        hash.add(file.bytes());
    }
    return {};
}

void add_content(ContentHash& hash, std::span<const std::byte> bytes) {
    if (bytes.size() <= kWholeBytes) return hash.add(bytes);
    for (std::size_t at = 0; at < bytes.size(); at += kStrideBytes)
        hash.add(bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at)));
    hash.add(bytes.last(kPieceBytes));
}

template <typename AddContent>
Expected<std::string> hash_with(const Checkpoint& checkpoint, const AddContent& add_bytes) {
    ContentHash hash;
    const auto& place = checkpoint.directory();
    ESPALIER_RETURN_IF_ERROR(checkpoint.is_gguf() ? add_metadata(hash, place, "")
                                                  : add_files(hash, place, kFiles));
    for (const auto& file : checkpoint.files()) {
        hash.add(file->name());
        for (const auto& [name, entry] : file->tensors()) {
            add_entry(hash, name, entry);
            add_bytes(hash, file->bytes_of(entry));
        }
    }
    return hash.text();
}

}  // namespace

Expected<std::string> model_hash(const Checkpoint& checkpoint) {
    return hash_with(checkpoint, add_content);
}

Expected<std::string> header_hash(const Checkpoint& checkpoint) {
    static constexpr std::size_t kSample = 64;
    return hash_with(checkpoint, [](ContentHash& hash, std::span<const std::byte> bytes) {
        const std::size_t taken = std::min(kSample, bytes.size());
        hash.word(bytes.size());
        hash.add(bytes.subspan((bytes.size() - taken) / 2, taken));
    });
}

Expected<std::string> tokenizer_hash(const std::filesystem::path& directory) {
    ContentHash hash;
    ESPALIER_RETURN_IF_ERROR(is_gguf_name(directory.native())
                                 ? add_metadata(hash, directory, "tokenizer.")
                                 : add_files(hash, directory, std::span(kFiles).subspan(1)));
    return hash.text();
}

}  // namespace espalier::checkpoint
