// SPDX-License-Identifier: Apache-2.0
// A mapped file that another process truncates, or whose disk fails, raises SIGBUS where it is next
// read. Guarded, the lost pages read as zeros, and who waits for a result asks
// check_mapped_files() before the result counts: an error that names the file, not the end of the
// process.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/error.hpp"

namespace espalier {

class MappingGuard {
  public:
    MappingGuard() = default;
    // mapped: whole mapping of a file, which outlives the guard. The first guard of a process
    // installs a handler of SIGBUS; faults elsewhere go to the handler before it.
    MappingGuard(std::span<const std::byte> mapped, const std::filesystem::path& path);
    MappingGuard(MappingGuard&& other) noexcept;
    MappingGuard& operator=(MappingGuard&& other) noexcept;
    ~MappingGuard();

    struct Entry;

  private:
    Entry* entry_ = nullptr;
};

// io, with the file's name, while a file that has lost pages is mapped.
Expected<void> check_mapped_files();

}  // namespace espalier
