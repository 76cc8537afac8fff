// SPDX-License-Identifier: Apache-2.0
// The tokens as bytes: id → bytes, and bytes → id for the tokens that BPE can reach.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "text/tokenizer.hpp"

namespace espalier::text {

// Sizes above these come from no published model; they bound what a hostile file can make us
// allocate.
struct VocabularyLimits {
    static constexpr std::int64_t kTokens = 1 << 20;  // largest id + 1; Kimi K2 has 163,840
    static constexpr std::int64_t kMerges = 1 << 21;  // DeepSeek-V3 has 127,741
    static constexpr std::size_t kTokenBytes = 4096;  // DeepSeek's longest has 128
    static constexpr std::size_t kFileBytes = 256u << 20;
};

class Vocabulary {
  public:
    // bytes_of_id[id] is empty for ids that stand for nothing.
    explicit Vocabulary(const std::vector<std::string>& bytes_of_id) {
        offsets_.reserve(bytes_of_id.size() + 1);
        offsets_.push_back(0);
        for (const std::string& bytes : bytes_of_id) {
            bytes_ += bytes;
            offsets_.push_back(bytes_.size());
        }
        slots_.resize(std::bit_ceil(bytes_of_id.size() * 2 + 2));
    }

    std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }

    std::string_view bytes(TokenId id) const {
        if (id < 0 || id >= size()) return {};
        const auto at = static_cast<std::size_t>(id);
        return std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
    }

    // Lets find() see this token. `whole`: BPE turns the token's bytes into this one id, so a word
    // that equals it needs no merging.
    void index(TokenId id, bool whole) {
        const std::uint32_t hash = hash_of(bytes(id));
        std::size_t at = hash & (slots_.size() - 1);
        while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = {hash, id, whole};
        if (bytes(id).size() > longest_) longest_ = bytes(id).size();
    }

    struct Found {
        TokenId id;
        bool whole;
    };
    std::optional<Found> find(std::string_view word) const {
        if (word.size() > longest_) return std::nullopt;
        const std::uint32_t hash = hash_of(word);
        for (std::size_t at = hash & (slots_.size() - 1); slots_[at].id >= 0;
             at = (at + 1) & (slots_.size() - 1))
            if (slots_[at].hash == hash && bytes(slots_[at].id) == word)
                return Found{slots_[at].id, slots_[at].whole};
        return std::nullopt;
    }

  private:
    struct Slot {
        std::uint32_t hash = 0;
        TokenId id = -1;
        bool whole = false;
    };

    static std::uint32_t hash_of(std::string_view word) {
        std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15u;
        while (!word.empty()) {
            std::uint64_t chunk = 0;
            const std::size_t taken = word.size() < 8 ? word.size() : 8;
            std::memcpy(&chunk, word.data(), taken);
            hash = (hash ^ chunk) * 0xD6E8FEB86659FD93u;
            hash ^= hash >> 32;
            word.remove_prefix(taken);
        }
        return static_cast<std::uint32_t>(hash);
    }

    std::string bytes_;
    std::vector<std::size_t> offsets_;
    std::vector<Slot> slots_;  // open addressing, at most half full
    std::size_t longest_ = 0;
};

}  // namespace espalier::text
