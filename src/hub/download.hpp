// SPDX-License-Identifier: Apache-2.0
// One file of a hub into the cache: ranges of it by several threads, tried again where they break,
// gone on with where an earlier run ended, and held to its checksum before it has its name.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/error.hpp"
#include "hub/fetcher.hpp"

namespace espalier::hub {

struct RemoteFile {
    std::string name;     // for messages
    std::string address;  // of the hub
    std::string etag;     // 64 hex digits: SHA-256; 40: git's SHA-1 of a blob
    std::int64_t size = 0;
};

// What the hub says of the file: by HEAD, without its bytes.
Expected<RemoteFile> look_up(Fetcher& fetcher, const std::string& name, const std::string& address,
                             int retries);

struct Transfer {
    int threads = 8;
    int retries = 5;  // tries that bring no byte, one after another, for each piece
    std::int64_t piece_bytes = 32 << 20;
    std::function<void(std::int64_t bytes)> arrived;  // any thread
};

// Into `target`, by way of a partial file beside it.
Expected<void> download(const RemoteFile& file, const Endpoint& endpoint, const Transfer& transfer,
                        const std::filesystem::path& target, std::atomic<bool>& interrupted);

}  // namespace espalier::hub
