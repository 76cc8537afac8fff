// SPDX-License-Identifier: Apache-2.0
// The client over https: it believes what the system's store believes, for the name that it was
// given, and nothing else.
#include <gtest/gtest.h>

#include <cstdlib>

#include "client/http_client.hpp"
#include "server/running_server.hpp"
#include "support/certificates.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::server::test {
namespace {

using espalier::test::CertificateFiles;
using espalier::test::CertificateWishes;
using espalier::test::write_certificate;

class TlsClient : public ::testing::Test {
  protected:
    CertificateFiles certificate(const CertificateWishes& wishes = {}) {
        return write_certificate(directory_.path().string(), std::to_string(++count_), wishes);
    }
    // What a call over https says: its body, or why there is none. believed: a file; empty: the
    // machine's own store.
    std::string call(const CertificateFiles& shown, const std::string& believed,
                     const std::string& host = "127.0.0.1") {
        RunningServer::Setup setup;
        setup.load = false;
        setup.server.tls_cert = shown.certificate;
        setup.server.tls_key = shown.key;
        const RunningServer server(setup);
        return call_port(server.port(), believed, host);
    }
    static std::string call_port(std::uint16_t port, const std::string& believed,
                                 const std::string& host) {
        believed.empty() ? ::unsetenv("SSL_CERT_FILE")
                         : ::setenv("SSL_CERT_FILE", believed.c_str(), 1);
        const auto url = client::parse_url("https://" + host + ":" + std::to_string(port));
        const auto client = client::HttpClient::open({.url = *url, .timeout_seconds = 60});
        if (!client) return client.error().message;
        const auto body = client::fetch(**client, {.path = "/version"}, 1 << 20);
        return body ? *body : body.error().message;
    }

  private:
    TemporaryDirectory directory_;
    int count_ = 0;
};

void expect_said(const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST_F(TlsClient, BelievesWhatTheStoreHolds) {
    const CertificateFiles own = certificate();
    expect_said(call(own, own.certificate), "\"version\"");
    expect_said(call(own, own.certificate, "localhost"), "\"version\"");
    expect_said(call(own, ""), "its certificate is not believed: self-signed");
    expect_said(call(own, certificate().certificate), "is not believed");
}

TEST_F(TlsClient, WantsTheNameThatItWasGiven) {
    const CertificateFiles other = certificate({.name = "other.example", .has_addresses = false});
    expect_said(call(other, other.certificate), "IP address mismatch");
    expect_said(call(other, other.certificate, "localhost"), "hostname mismatch");
}

TEST_F(TlsClient, WantsACertificateOfToday) {
    const CertificateFiles old = certificate({.from_seconds = -7200, .to_seconds = -3600});
    expect_said(call(old, old.certificate), "certificate has expired");
}

TEST_F(TlsClient, APlainServerIsNone) {
    RunningServer::Setup setup;
    setup.load = false;
    const RunningServer plain(setup);
    expect_said(call_port(plain.port(), "", "127.0.0.1"), "127.0.0.1:");
    EXPECT_EQ(plain.client().get("/livez").status, 200);
}

}  // namespace
}  // namespace espalier::server::test
