// SPDX-License-Identifier: Apache-2.0
#include "support/certificates.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>

namespace espalier::test {
namespace {

void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

void add_extension(X509* certificate, int kind, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
    const std::unique_ptr<X509_EXTENSION, void (*)(X509_EXTENSION*)> extension(
        X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()), X509_EXTENSION_free);
    require(extension && X509_add_ext(certificate, extension.get(), -1) == 1, "extension");
}

template <typename Write>
void write_pem(const std::string& path, Write write) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    require(file != nullptr, "fopen");
    require(write(file) == 1, "PEM");
    std::fclose(file);
}

}  // namespace

CertificateFiles write_certificate(const std::string& folder, const std::string& file_name,
                                   const CertificateWishes& wishes) {
    const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, void (*)(X509*)> made(X509_new(), X509_free);
    require(key && made, "key");
    X509_set_version(made.get(), 2);
    std::random_device random;
    ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), random());
    X509_gmtime_adj(X509_getm_notBefore(made.get()), wishes.from_seconds);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), wishes.to_seconds);
    X509_set_pubkey(made.get(), key.get());
    X509_NAME* name = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(file_name.c_str()), -1, -1,
                               0);
    X509_set_issuer_name(made.get(), name);
    add_extension(made.get(), NID_basic_constraints, "critical,CA:TRUE");
    add_extension(made.get(), NID_subject_alt_name,
                  "DNS:" + wishes.name + (wishes.has_addresses ? ",IP:127.0.0.1" : ""));
    require(X509_sign(made.get(), key.get(), EVP_sha256()) > 0, "signature");
    CertificateFiles files{folder + "/" + file_name + ".pem", folder + "/" + file_name + ".key"};
    write_pem(files.certificate, [&](std::FILE* file) { return PEM_write_X509(file, made.get()); });
    write_pem(files.key, [&](std::FILE* file) {
        return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    return files;
}

}  // namespace espalier::test
