// SPDX-License-Identifier: Apache-2.0
// The build without OpenSSL.
#include "tls/context.hpp"
#include "tls/digest.hpp"

namespace espalier::tls {
namespace {

constexpr const char* kNone = "this build has no TLS (libssl-dev was not there)";

}  // namespace

bool has_digests() { return false; }
Expected<Context> server_context(const std::string&, const std::string&) {
    return fail_field(ErrorKind::unsupported, "tls_cert", "{}", kNone);
}
std::optional<std::string> certificate_warning(const Context&) { return std::nullopt; }
Expected<Context> client_context() { return fail(ErrorKind::unsupported, "{}", kNone); }
ssl_st* new_server_session(const Context&) { return nullptr; }
Expected<ssl_st*> new_client_session(const Context&, const std::string&) {
    return fail(ErrorKind::unsupported, "{}", kNone);
}
std::string distrust(ssl_st*) { return {}; }

Expected<std::string> sha256_of_file(const std::filesystem::path&) {
    return fail(ErrorKind::unsupported, "{}", kNone);
}
Expected<std::string> git_blob_of_file(const std::filesystem::path&) {
    return fail(ErrorKind::unsupported, "{}", kNone);
}

}  // namespace espalier::tls
