// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: either refused with a message, or every tensor lies inside the file and
// apart from the others, and configuration and tokenizer are refused with a message or made.
#include <cstdint>
#include <span>
#include <string>

#include "base/gguf.hpp"
#include "checkpoint/gguf_config.hpp"
#include "checkpoint/gguf_file.hpp"
#include "fuzz/require.hpp"
#include "text/tokenizer.hpp"

namespace {

using espalier::GgufHeader;
using espalier::test::require;

void check_model(const GgufHeader& header, std::size_t file_bytes) {
    const auto config = espalier::checkpoint::read_gguf_config(header, true, "fuzz");
    if (!config) return require(!config.error().message.empty());
    const auto entries = espalier::checkpoint::gguf_entries(header.tensors, *config, "fuzz");
    if (!entries) return require(!entries.error().message.empty());
    for (const auto& [name, entry] : *entries)
        require(entry.begin <= entry.end && entry.end <= file_bytes);
}

void check_tokenizer(const GgufHeader& header) {
    const auto tokenizer = espalier::text::Tokenizer::from_gguf(header, "fuzz");
    if (!tokenizer) return require(!tokenizer.error().message.empty());
    const auto ids = tokenizer->encode("def f(x):\n    return 12345");
    require(ids.has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto header = espalier::parse_gguf(bytes, "fuzz");
    if (!header) {
        require(!header.error().message.empty());
        return 0;
    }
    std::uint64_t end = header->data_begin;
    for (const espalier::GgufTensor& tensor : header->tensors) {
        require(tensor.begin >= end && tensor.end >= tensor.begin && tensor.end <= size);
        end = tensor.end;
    }
    for (const auto& [key, value] : header->values) {
        require(!value.shown().empty());
        (void)value.texts();
        (void)value.integers();
    }
    check_model(*header, size);
    check_tokenizer(*header);
    return 0;
}
