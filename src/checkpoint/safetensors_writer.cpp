// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapping_guard.hpp"

namespace espalier::checkpoint {

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {}

OutputFile::~OutputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

Expected<void> OutputFile::write(const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = descriptor_ < 0 ? -1 : ::write(descriptor_, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0)
            return fail(ErrorKind::io, "{}: cannot write: {}", path_.string(),
                        std::strerror(errno));
        at += written;
        bytes -= static_cast<std::size_t>(written);
    }
    return {};
}

Expected<void> OutputFile::close() {
    // Bytes that came from a mapped file that lost them are zeros.
    if (descriptor_ >= 0 && ::close(std::exchange(descriptor_, -1)) == 0)
        return check_mapped_files();
    return fail(ErrorKind::io, "{}: cannot write: {}", path_.string(), std::strerror(errno));
}

Expected<void> write_text(const std::filesystem::path& path, std::string_view text) {
    OutputFile file(path);
    ESPALIER_RETURN_IF_ERROR(file.write(text.data(), text.size()));
    return file.close();
}

std::string shard_name(std::size_t index, std::size_t count) {
    if (count == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::string safetensors_head(const Shard& shard, std::size_t alignment) {
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"}};
    std::uint64_t offset = 0;
    for (const TensorSpec& spec : shard.tensors) {
        header[spec.name] = {{"dtype", name_of(spec.type)},
                             {"shape", spec.shape},
                             {"data_offsets", {offset, offset + spec.bytes()}}};
        offset += spec.bytes();
    }
    std::string text = header.dump();
    std::string head(8, '\0');
    text.resize((text.size() + 8 + alignment - 1) / alignment * alignment - 8, ' ');
    for (std::size_t i = 0; i < 8; ++i)
        head[i] = static_cast<char>((static_cast<std::uint64_t>(text.size()) >> (8 * i)) & 0xff);
    return head + text;
}

std::string index_json(std::span<const Shard> shards, std::uint64_t total_bytes) {
    nlohmann::json index;
    index["metadata"]["total_size"] = total_bytes;
    for (const Shard& shard : shards)
        for (const TensorSpec& spec : shard.tensors) index["weight_map"][spec.name] = shard.file;
    return index.dump(2) + "\n";
}

}  // namespace espalier::checkpoint
