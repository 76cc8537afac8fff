// SPDX-License-Identifier: Apache-2.0
#include "grammar/mask_cache.hpp"

namespace espalier::grammar {

std::size_t MaskCache::KeyHash::operator()(const Key& key) const {
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (const std::int32_t value : key) {
        hash = (hash ^ static_cast<std::uint32_t>(value)) * 0xff51afd7ed558ccd;
        hash ^= hash >> 32;
    }
    return hash;
}

MaskCache::Mask MaskCache::find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const Mask* found = masks_.find(key);
    if (found == nullptr) return nullptr;
    ++counts_.found;
    return *found;
}

MaskCache::Mask MaskCache::add(Key key, std::span<const std::uint32_t> words) {
    auto mask = std::make_shared<const std::vector<std::uint32_t>>(words.begin(), words.end());
    const std::lock_guard lock(mutex_);
    if (const Mask* found = masks_.find(key)) return *found;
    ++counts_.filled;
    const std::size_t bytes = words.size_bytes() + 2 * key.size() * sizeof(key[0]);
    masks_.add(std::move(key), mask, bytes);
    return mask;
}

MaskCounts MaskCache::counts() const {
    const std::lock_guard lock(mutex_);
    MaskCounts counts = counts_;
    counts.bytes = masks_.bytes();
    return counts;
}

}  // namespace espalier::grammar
