// SPDX-License-Identifier: Apache-2.0
// Digests of files as hubs of models name them: SHA-256 of large ones, git's SHA-1 of small ones.
// A build without OpenSSL refuses both by name.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.hpp"

namespace espalier::tls {

// False: everything here is refused.
bool has_digests();
// 64 hex digits.
Expected<std::string> sha256_of_file(const std::filesystem::path& file);
// 40 hex digits of "blob SIZE\0" and the file.
Expected<std::string> git_blob_of_file(const std::filesystem::path& file);

}  // namespace espalier::tls
