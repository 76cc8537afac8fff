// SPDX-License-Identifier: Apache-2.0
// TLS apart from sockets: what a server shows its clients, what a client believes, and the session
// of one connection, which a stream of Asio carries. TLS 1.2 and 1.3. In a build without OpenSSL
// everything here is refused by name.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.hpp"

struct ssl_ctx_st;
struct ssl_st;

namespace espalier::tls {

using Context = std::shared_ptr<ssl_ctx_st>;  // null: no TLS

// A certificate with its chain and its key, from PEM files that must fit each other. Errors name
// tls_cert or tls_key.
Expected<Context> server_context(const std::string& certificate_file, const std::string& key_file);

// Text about a certificate that clients will not take, because of its dates.
std::optional<std::string> certificate_warning(const Context& context);

// Believes certificates of the system's store, or of SSL_CERT_FILE and SSL_CERT_DIR.
Expected<Context> client_context();

// Sessions belong to the stream that takes them.
ssl_st* new_server_session(const Context& context);
// host: the name or address that the other side's certificate must be for.
Expected<ssl_st*> new_client_session(const Context& context, const std::string& host);

// "certificate has expired": why the other side's certificate was not believed; empty: it was, or
// none came.
std::string distrust(ssl_st* session);

}  // namespace espalier::tls
