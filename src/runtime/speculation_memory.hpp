// SPDX-License-Identifier: Apache-2.0
// The file of speculation's memory (speculate/policy/memory.hpp): one for each text identity, list
// of drafters and machine, in a directory of the user's. Numbers and names of drafters, no token of
// a text. Written whole and by rename, so that two engines may share it: the later one's stands.
// What is damaged, of another version or too large is no memory, and the next stop writes it anew.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/text_identity.hpp"
#include "speculate/policy/memory.hpp"

namespace espalier::runtime {

class SpeculationMemory {
  public:
    static constexpr std::int64_t kMostBytes = 1 << 20;  // of a file
    static constexpr std::size_t kMostFiles = 64;        // of a directory: the oldest ones go

    // Key of the numbers.
    struct Key {
        TextIdentity identity = {};
        std::string model = {}, draft = {};  // names
        std::vector<std::string> drafters = {};
        std::string machine = {};
        int threads = 0;
    };
    SpeculationMemory(std::filesystem::path directory, const Key& key);

    // Nothing was kept: an empty memory.
    Expected<speculate::Memory> load() const;
    // Makes the directory if it is not there.
    Expected<void> save(const speculate::Memory& memory) const;
    const std::filesystem::path& file() const { return file_; }

    // In XDG_CACHE_HOME, or HOME's .cache; empty: neither is set.
    static std::filesystem::path default_directory();

  private:
    void remove_oldest() const;

    std::filesystem::path directory_, file_;
};

// The processor's name, as the system tells it; empty: it does not.
std::string machine_name();

}  // namespace espalier::runtime
