// SPDX-License-Identifier: Apache-2.0
#include "replay/fingerprint.hpp"

#include <algorithm>

#include "base/content_hash.hpp"
#include "base/mapped_file.hpp"
#include "checkpoint/tensor_hash.hpp"

namespace espalier::replay {
namespace {

constexpr std::size_t kWholeBytes = std::size_t{1} << 20;
constexpr std::size_t kStrideBytes = std::size_t{1} << 18;
constexpr std::size_t kPieceBytes = std::size_t{1} << 12;

void add_content(ContentHash& hash, std::span<const std::byte> bytes) {
    if (bytes.size() <= kWholeBytes) return hash.add(bytes);
    for (std::size_t at = 0; at < bytes.size(); at += kStrideBytes)
        hash.add(bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at)));
    hash.add(bytes.last(kPieceBytes));
}

}  // namespace

Expected<std::string> fingerprint(const checkpoint::Checkpoint& checkpoint) {
    ContentHash hash;
    for (const char* name :
         {"config.json", "tokenizer_config.json", "tokenizer.json", "tiktoken.model"}) {
        const auto path = checkpoint.directory() / name;
        hash.add(std::string_view(name));
        if (!std::filesystem::exists(path)) continue;
        ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
        hash.add(file.bytes());
    }
    for (const auto& file : checkpoint.files()) {
        hash.add(file->name());
        for (const auto& [name, entry] : file->tensors()) {
            checkpoint::add_entry(hash, name, entry);
            add_content(hash, file->bytes_of(entry));
        }
    }
    return hash.text();
}

}  // namespace espalier::replay
