// SPDX-License-Identifier: Apache-2.0
// A file beside a checkpoint that holds its weights in a backend's own layout, to be mapped and
// read in place. It is a safetensors file: named sections of bytes, each a whole number of 4 KiB
// and beginning with one, behind a first section that says what it is: layout, version of the
// layout, fingerprint of the checkpoint, hash of the header. A section has no shape of its own: who
// asks for it knows its bytes, and another number of them is an error. The last section has a sum
// of each one's bytes. Nothing in it is trusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

// Which weights a checkpoint holds, as 16 hex digits: names, types and shapes of all tensors and 4
// KiB in 64 places of each file, so that the weights of a large model stay on disk. Finds another
// model and another rounding of it, not a few changed numbers.
std::string weights_fingerprint(const Checkpoint& checkpoint);

// Identity of the checkpoint and machine that a packed file is for.
struct PackedIdentity {
    std::string layout;  // of the backend, "panels"
    int version = 0;     // of the layout
    std::string source;  // weights_fingerprint
};

// "packed-panels.espalier" in the model's directory, "FILE.gguf.packed-panels.espalier" beside a
// GGUF file.
std::filesystem::path packed_path(const std::filesystem::path& directory, std::string_view layout);

class PackedFile {
  public:
    static constexpr std::uint64_t kAlignment = 4096;  // a page: sections are mapped and advised

    // Refuses, by name, a file that is damaged, cut short, or for another layout, version or model.
    static Expected<PackedFile> open(const std::filesystem::path& path,
                                     const PackedIdentity& wanted);

    // Aligned to kAlignment.
    Expected<std::span<const std::byte>> section(std::string_view name, std::uint64_t bytes) const;
    // Reads every section but those that `left_out` is true of, and refuses one that is not what
    // was written.
    Expected<void> check_sums(ThreadPool& pool,
                              const std::function<bool(std::string_view)>& left_out) const;
    const MappedFile& file() const { return file_.file(); }

  private:
    TensorFile file_;
};

// Sections are listed first, then written in the same order.
class PackedFileWriter {
  public:
    struct Section {
        std::string name;
        std::uint64_t bytes = 0;
    };

    // Writes to "PATH.PROCESS.part" until finish(), which replaces what is there; a writer that
    // does not come to it leaves nothing.
    static Expected<PackedFileWriter> create(std::filesystem::path path,
                                             const PackedIdentity& identity,
                                             std::vector<Section> sections);
    Expected<void> write(std::string_view name, std::span<const std::byte> bytes);
    Expected<void> finish();
    PackedFileWriter(PackedFileWriter&&) = default;
    PackedFileWriter& operator=(PackedFileWriter&&) = default;
    ~PackedFileWriter();

  private:
    PackedFileWriter() = default;
    Expected<void> put(std::span<const std::byte> bytes);

    std::filesystem::path path_, part_;
    std::vector<Section> sections_;
    std::size_t next_ = 0;
    std::vector<std::uint64_t> sums_;  // of the sections that are written
    std::unique_ptr<OutputFile> file_;
};

}  // namespace espalier::checkpoint
