// SPDX-License-Identifier: Apache-2.0
#include "replay/fingerprint.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/mapped_file.hpp"

namespace espalier::replay {
namespace {

constexpr std::size_t kWholeBytes = std::size_t{1} << 20;
constexpr std::size_t kStrideBytes = std::size_t{1} << 18;
constexpr std::size_t kPieceBytes = std::size_t{1} << 12;

// Eight bytes at a time: multiply, rotate, multiply, and a final avalanche (as in xxHash).
class Hash {
  public:
    void add(std::span<const std::byte> bytes) {
        word(bytes.size());
        while (bytes.size() >= 8) {
            std::uint64_t value = 0;
            std::memcpy(&value, bytes.data(), 8);
            word(value);
            bytes = bytes.subspan(8);
        }
        std::uint64_t rest = 0;
        if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
        word(rest);
    }
    void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
    void word(std::uint64_t value) {
        state_ = std::rotl(state_ ^ (value * 0x9e3779b97f4a7c15u), 29) * 0xbf58476d1ce4e5b9u + 1;
    }
    std::string text() const {
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 31)) * 0x94d049bb133111ebu;
        return fmt::format("{:016x}", mixed ^ (mixed >> 29));
    }

  private:
    std::uint64_t state_ = 0x243f6a8885a308d3u;
};

void add_content(Hash& hash, std::span<const std::byte> bytes) {
    if (bytes.size() <= kWholeBytes) return hash.add(bytes);
    for (std::size_t at = 0; at < bytes.size(); at += kStrideBytes)
        hash.add(bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at)));
    hash.add(bytes.last(kPieceBytes));
}

}  // namespace

Expected<std::string> fingerprint(const checkpoint::Checkpoint& checkpoint) {
    Hash hash;
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
            hash.add(name);
            hash.add(entry.type_name());
            for (const std::int64_t extent : entry.shape)
                hash.word(static_cast<std::uint64_t>(extent));
            add_content(hash, file->bytes_of(entry));
        }
    }
    return hash.text();
}

}  // namespace espalier::replay
