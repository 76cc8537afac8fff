// SPDX-License-Identifier: Apache-2.0
#include "tls/context.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/mapped_file.hpp"

namespace espalier::tls {
namespace {

constexpr std::size_t kMaxPemBytes = 1 << 20;
// Forward secrecy and authenticated encryption; TLS 1.3 has nothing else.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

template <auto Free>
struct Freed {
    template <typename T>
    void operator()(T* what) const {
        Free(what);
    }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

std::string last_failure() {
    const unsigned long code = ERR_peek_last_error();
    const char* reason = ERR_reason_error_string(code);
    ERR_clear_error();
    return reason == nullptr ? "no reason given" : reason;
}

// A key that is encrypted would otherwise be asked for on the terminal.
int no_password(char*, int, int, void*) { return 0; }

Expected<Bio> read_pem(const char* field, const std::string& file) {
    const auto text = read_text_file(file, kMaxPemBytes);
    if (!text) return fail_field(text.error().kind, field, "{}", text.error().message);
    Bio bio(BIO_new(BIO_s_mem()));
    if (!bio || BIO_write(bio.get(), text->data(), static_cast<int>(text->size())) !=
                    static_cast<int>(text->size()))
        return fail_field(ErrorKind::exhausted, field, "{}: no memory for it", file);
    return bio;
}

// The server's own certificate comes first, those between it and a root follow.
Expected<void> use_certificates(SSL_CTX* context, const std::string& file) {
    constexpr const char* kField = "tls_cert";
    ESPALIER_ASSIGN_OR_RETURN(const Bio pem, read_pem(kField, file));
    const Certificate own(PEM_read_bio_X509_AUX(pem.get(), nullptr, no_password, nullptr));
    if (!own)
        return fail_field(ErrorKind::invalid, kField, "{}: no certificate in the form PEM ({})",
                          file, last_failure());
    if (SSL_CTX_use_certificate(context, own.get()) != 1)
        return fail_field(ErrorKind::invalid, kField, "{}: {}", file, last_failure());
    for (;;) {
        Certificate next(PEM_read_bio_X509(pem.get(), nullptr, no_password, nullptr));
        if (!next) break;
        if (SSL_CTX_add0_chain_cert(context, next.get()) != 1)
            return fail_field(ErrorKind::invalid, kField, "{}: {}", file, last_failure());
        next.release();  // the context's now
    }
    const unsigned long code = ERR_peek_last_error();
    if (ERR_GET_REASON(code) != PEM_R_NO_START_LINE)
        return fail_field(ErrorKind::invalid, kField,
                          "{}: a certificate of its chain is broken "
                          "({})",
                          file, last_failure());
    ERR_clear_error();
    return {};
}

Expected<void> use_key(SSL_CTX* context, const std::string& file,
                       const std::string& certificate_file) {
    constexpr const char* kField = "tls_key";
    ESPALIER_ASSIGN_OR_RETURN(const Bio pem, read_pem(kField, file));
    const Key key(PEM_read_bio_PrivateKey(pem.get(), nullptr, no_password, nullptr));
    if (!key)
        return fail_field(ErrorKind::invalid, kField,
                          "{}: no private key in the form PEM without a password ({})", file,
                          last_failure());
    if (X509_check_private_key(SSL_CTX_get0_certificate(context), key.get()) != 1) {
        ERR_clear_error();
        return fail_field(ErrorKind::invalid, kField, "{}: not the key of the certificate in {}",
                          file, certificate_file);
    }
    if (SSL_CTX_use_PrivateKey(context, key.get()) != 1)
        return fail_field(ErrorKind::invalid, kField, "{}: {}", file, last_failure());
    return {};
}

// HTTP/1.1 for clients that name protocols; those that do not name it find out by themselves.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* in, unsigned in_size, void*) {
    static const unsigned char kHttp[] = "\x08http/1.1";
    unsigned char* chosen = nullptr;
    if (SSL_select_next_proto(&chosen, out_size, kHttp, sizeof kHttp - 1, in, in_size) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

Expected<Context> new_context(const SSL_METHOD* method) {
    Context context(SSL_CTX_new(method), SSL_CTX_free);
    if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(context.get(), kCiphers) != 1)
        return fail(ErrorKind::unsupported, "OpenSSL: {}", last_failure());
    SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    // 34 KB less for each connection that waits.
    SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
    return context;
}

bool is_address(const std::string& host) {
    std::array<unsigned char, sizeof(in6_addr)> bytes{};
    return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
           inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

}  // namespace

Expected<Context> server_context(const std::string& certificate_file, const std::string& key_file) {
    ESPALIER_ASSIGN_OR_RETURN(Context context, new_context(TLS_server_method()));
    ESPALIER_RETURN_IF_ERROR(use_certificates(context.get(), certificate_file));
    ESPALIER_RETURN_IF_ERROR(use_key(context.get(), key_file, certificate_file));
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);  // tickets do without
    SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
    return context;
}

std::optional<std::string> certificate_warning(const Context& context) {
    const X509* certificate = SSL_CTX_get0_certificate(context.get());
    if (certificate == nullptr) return std::nullopt;
    const auto at = [](const ASN1_TIME* time) {
        const Bio text(BIO_new(BIO_s_mem()));
        ASN1_TIME_print(text.get(), time);
        char* bytes = nullptr;
        const long count = BIO_get_mem_data(text.get(), &bytes);
        return std::string(bytes, static_cast<std::size_t>(count));
    };
    const ASN1_TIME* end = X509_get0_notAfter(certificate);
    const ASN1_TIME* begin = X509_get0_notBefore(certificate);
    if (X509_cmp_current_time(end) < 0)
        return fmt::format("the certificate of --tls-cert ended on {}", at(end));
    if (X509_cmp_current_time(begin) > 0)
        return fmt::format("the certificate of --tls-cert begins on {}", at(begin));
    return std::nullopt;
}

Expected<Context> client_context() {
    ESPALIER_ASSIGN_OR_RETURN(Context context, new_context(TLS_client_method()));
    if (SSL_CTX_set_default_verify_paths(context.get()) != 1)
        return fail(ErrorKind::io, "the system's certificates cannot be read ({})", last_failure());
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    return context;
}

ssl_st* new_server_session(const Context& context) { return SSL_new(context.get()); }

Expected<ssl_st*> new_client_session(const Context& context, const std::string& host) {
    std::unique_ptr<SSL, Freed<SSL_free>> session(SSL_new(context.get()));
    if (!session) return fail(ErrorKind::exhausted, "OpenSSL: {}", last_failure());
    X509_VERIFY_PARAM* wanted = SSL_get0_param(session.get());
    const bool is_set = is_address(host)
                            ? X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1
                            : SSL_set1_host(session.get(), host.c_str()) == 1 &&
                                  SSL_set_tlsext_host_name(session.get(), host.c_str()) == 1;
    if (!is_set) return fail(ErrorKind::invalid, "{}: no name for TLS ({})", host, last_failure());
    return session.release();
}

std::string distrust(ssl_st* session) {
    const long result = SSL_get_verify_result(session);
    return result == X509_V_OK ? std::string() : X509_verify_cert_error_string(result);
}

}  // namespace espalier::tls
