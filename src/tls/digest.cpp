// SPDX-License-Identifier: Apache-2.0
#include "tls/digest.hpp"

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

namespace espalier::tls {
namespace {

constexpr std::size_t kDigestChunk = 1 << 20;

Expected<std::string> digest(const std::filesystem::path& file, const EVP_MD* method,
                             std::string_view prefix) {
    const auto wrong = [&](const char* what) {
        return fail(ErrorKind::io, "{}: {}", file.string(), what);
    };
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
    if (!context || EVP_DigestInit_ex(context.get(), method, nullptr) != 1)
        return wrong("OpenSSL has no such digest");
    EVP_DigestUpdate(context.get(), prefix.data(), prefix.size());
    std::ifstream in(file, std::ios::binary);
    if (!in) return wrong("cannot be read");
    std::vector<char> bytes(kDigestChunk);
    while (in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())) || in.gcount() > 0)
        EVP_DigestUpdate(context.get(), bytes.data(), static_cast<std::size_t>(in.gcount()));
    if (in.bad()) return wrong("cannot be read to its end");
    std::array<unsigned char, EVP_MAX_MD_SIZE> made{};
    unsigned count = 0;
    if (EVP_DigestFinal_ex(context.get(), made.data(), &count) != 1)
        return wrong("OpenSSL made no digest");
    std::string text;
    for (unsigned i = 0; i < count; ++i) text += fmt::format("{:02x}", made[i]);
    return text;
}

}  // namespace

bool has_digests() { return true; }

Expected<std::string> sha256_of_file(const std::filesystem::path& file) {
    return digest(file, EVP_sha256(), {});
}

Expected<std::string> git_blob_of_file(const std::filesystem::path& file) {
    std::error_code failure;
    const auto size = std::filesystem::file_size(file, failure);
    if (failure) return fail(ErrorKind::io, "{}: {}", file.string(), failure.message());
    return digest(file, EVP_sha1(), fmt::format("blob {}", size) + '\0');
}

}  // namespace espalier::tls
