// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace espalier::checkpoint {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

Expected<std::uint64_t> read_header_length(std::span<const std::byte> head,
                                           std::uint64_t file_bytes, std::string_view name) {
    if (file_bytes < kLengthBytes || head.size() < kLengthBytes)
        return fail(ErrorKind::invalid, "{}: {} bytes, a safetensors file has at least {}", name,
                    std::min<std::uint64_t>(file_bytes, head.size()), kLengthBytes);
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i)
        length |= std::to_integer<std::uint64_t>(head[i]) << (8 * i);
    if (length > kMaxHeaderBytes)
        return fail(ErrorKind::invalid, "{}: header of {} bytes, the limit is {}", name, length,
                    kMaxHeaderBytes);
    if (length > file_bytes - kLengthBytes || length > head.size() - kLengthBytes)
        return fail(ErrorKind::invalid, "{}: header ends at {} but the file has {} bytes", name,
                    length + kLengthBytes, file_bytes);
    return length;
}

// bytes = product of the shape × element size, in 64 bits.
Expected<void> check_size(const TensorEntry& entry, std::string_view tensor,
                          std::string_view name) {
    if (entry.type == StoredType::other) return {};  // its element size is not known
    std::uint64_t bytes = bytes_of(entry.type);
    for (const std::int64_t dimension : entry.shape)
        if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes))
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' has shape [{}], more than 2^64 bytes of {}", name, tensor,
                        fmt::join(entry.shape, ", "), entry.type_name());
    if (bytes != entry.end - entry.begin)
        return fail(ErrorKind::invalid,
                    "{}: tensor '{}' has {} bytes, its shape [{}] of {} needs {}", name, tensor,
                    entry.end - entry.begin, fmt::join(entry.shape, ", "), entry.type_name(),
                    bytes);
    return {};
}

// The reference allows neither holes nor overlaps nor a rest: each byte belongs to one tensor.
Expected<void> check_cover(const TensorEntries& entries, std::uint64_t data_begin,
                           std::uint64_t file_bytes, std::string_view name) {
    std::vector<const TensorEntries::value_type*> order;
    order.reserve(entries.size());
    for (const auto& item : entries) order.push_back(&item);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        return std::pair(a->second.begin, a->second.end) <
               std::pair(b->second.begin, b->second.end);
    });
    std::uint64_t end = data_begin;
    std::string_view before = "the header";
    for (const auto* item : order) {
        if (item->second.begin != end)
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' begins at {} but '{}' before it ends at {}: {}", name,
                        item->first, item->second.begin, before, end,
                        item->second.begin < end ? "they overlap" : "a hole");
        end = item->second.end;
        before = item->first;
    }
    if (end != file_bytes)
        return fail(ErrorKind::invalid, "{}: tensors end at {} but the file has {} bytes", name,
                    end, file_bytes);
    return {};
}

}  // namespace

Expected<TensorEntries> parse_safetensors_header(std::span<const std::byte> head,
                                                 std::uint64_t file_bytes, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const std::uint64_t length,
                              read_header_length(head, file_bytes, name));
    const std::string_view json_text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                                     static_cast<std::size_t>(length));
    ESPALIER_ASSIGN_OR_RETURN(TensorEntries entries, read_header_json(json_text, name));

    const std::uint64_t data_begin = kLengthBytes + length;
    const std::uint64_t data_bytes = file_bytes - data_begin;
    for (auto& [tensor, entry] : entries) {
        if (entry.begin > entry.end)
            return fail(ErrorKind::invalid, "{}: tensor '{}' begins at {} after its end at {}",
                        name, tensor, entry.begin, entry.end);
        if (entry.end > data_bytes)
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' ends at {} of the data but the file has {} bytes of it",
                        name, tensor, entry.end, data_bytes);
        ESPALIER_RETURN_IF_ERROR(check_size(entry, tensor, name));
        entry.begin += data_begin;
        entry.end += data_begin;
    }
    ESPALIER_RETURN_IF_ERROR(check_cover(entries, data_begin, file_bytes, name));
    return entries;
}

Expected<TensorFile> open_safetensors(const std::filesystem::path& path) {
    ESPALIER_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
    return read_safetensors(std::move(file));
}

Expected<TensorFile> read_safetensors(MappedFile file) {
    const std::string name = file.path().filename().string();
    ESPALIER_ASSIGN_OR_RETURN(TensorEntries tensors,
                              parse_safetensors_header(file.bytes(), file.size(), name));
    return TensorFile(std::move(file), std::move(tensors));
}

std::span<const std::byte> TensorFile::bytes_of(const TensorEntry& entry) const {
    CHECK(entry.begin <= entry.end && entry.end <= file_.size(), "bytes {} to {} of {} in {}",
          entry.begin, entry.end, file_.size(), file_.path().string());
    return file_.bytes().subspan(static_cast<std::size_t>(entry.begin),
                                 static_cast<std::size_t>(entry.end - entry.begin));
}

}  // namespace espalier::checkpoint
