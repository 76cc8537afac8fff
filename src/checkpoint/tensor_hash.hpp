// SPDX-License-Identifier: Apache-2.0
// What a fingerprint takes of a tensor's entry in a header; its place or bytes are the caller's to
// add. Packed files and traces keep such fingerprints: the order of what is added stays.
#pragma once

#include "base/content_hash.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

inline void add_entry(ContentHash& hash, std::string_view name, const TensorEntry& entry) {
    hash.add(name);
    hash.add(entry.type_name());
    for (const std::int64_t extent : entry.shape) hash.word(static_cast<std::uint64_t>(extent));
}

}  // namespace espalier::checkpoint
