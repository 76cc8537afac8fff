// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: either refused with a message, or every tensor lies inside the
// file, disjoint from the others and of the size its shape says.
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/safetensors.hpp"
#include "fuzz/require.hpp"

namespace {

using espalier::checkpoint::StoredType;
using espalier::checkpoint::TensorEntries;
using espalier::test::require;

void check(const espalier::Expected<TensorEntries>& result, std::uint64_t file_bytes) {
    if (!result) {
        require(!result.error().message.empty());
        return;
    }
    std::uint64_t covered = 0;
    for (const auto& [name, entry] : *result) {
        require(entry.begin >= 8 && entry.begin <= entry.end && entry.end <= file_bytes);
        covered += entry.end - entry.begin;
        if (entry.type == StoredType::other) continue;
        unsigned __int128 bytes = espalier::checkpoint::bytes_of(entry.type);
        for (const std::int64_t dimension : entry.shape) {
            require(dimension >= 0);
            bytes *= static_cast<unsigned __int128>(dimension);
        }
        require(bytes == entry.end - entry.begin);
    }
    require(covered <= file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    check(espalier::checkpoint::parse_safetensors_header(bytes, size, "fuzz"), size);

    // The same bytes as the JSON alone, behind a right length and before 4096 bytes of data:
    // mutations then reach the entries instead of dying at the length.
    std::string head(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
        head[i] = static_cast<char>((std::uint64_t{size} >> (8 * i)) & 0xff);
    head.append(reinterpret_cast<const char*>(data), size);
    const std::uint64_t file_bytes = head.size() + 4096;
    check(espalier::checkpoint::parse_safetensors_header(std::as_bytes(std::span(head)), file_bytes,
                                                         "fuzz"),
          file_bytes);
    return 0;
}
