// SPDX-License-Identifier: Apache-2.0
// Files that a server is started with, right and wrong, and digests of files.
#include "tls/context.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/certificates.hpp"
#include "support/temporary_directory.hpp"
#include "tls/digest.hpp"

namespace espalier::tls {
namespace {

using test::CertificateFiles;
using test::write_certificate;

std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

class Files : public ::testing::Test {
  protected:
    std::string write(const std::string& name, const std::string& text) const {
        const std::string path = folder() + "/" + name;
        std::ofstream(path) << text;
        return path;
    }
    std::string folder() const { return directory_.path().string(); }
    // Field and sentence.
    void expect_refused(const std::string& certificate, const std::string& key,
                        const std::string& field, const std::string& words) const {
        const auto context = server_context(certificate, key);
        ASSERT_FALSE(context) << words;
        EXPECT_EQ(context.error().field, field) << context.error().message;
        EXPECT_NE(context.error().message.find(words), std::string::npos)
            << context.error().message;
    }

  private:
    TemporaryDirectory directory_;
};

TEST_F(Files, ThatFitAreTakenWithTheirChain) {
    const CertificateFiles own = write_certificate(folder(), "own");
    const auto context = server_context(own.certificate, own.key);
    ASSERT_TRUE(context) << context.error().message;
    EXPECT_FALSE(certificate_warning(*context));
    const CertificateFiles other = write_certificate(folder(), "other");
    EXPECT_TRUE(server_context(
        write("chain", "words before\n" + read(own.certificate) + "\n" + read(other.certificate)),
        own.key));
    // Both in one file, as some tools write them.
    const std::string both = write("both", read(own.certificate) + read(own.key));
    EXPECT_TRUE(server_context(both, both));
}

TEST_F(Files, ThatAreWrongAreRefusedByName) {
    const CertificateFiles own = write_certificate(folder(), "own");
    const CertificateFiles other = write_certificate(folder(), "other");
    const std::string none = folder() + "/none";
    expect_refused(none, own.key, "tls_cert", none);
    expect_refused(own.certificate, none, "tls_key", none);
    expect_refused(folder(), own.key, "tls_cert", folder());
    expect_refused(own.key, own.key, "tls_cert", "no certificate in the form PEM");
    expect_refused(own.certificate, own.certificate, "tls_key", "no private key");
    expect_refused(own.certificate, other.key, "tls_key",
                   "other.key: not the key of the certificate in " + own.certificate);
    // The server's own comes first.
    expect_refused(write("turned", read(other.certificate) + read(own.certificate)), own.key,
                   "tls_key", "not the key");
    const std::string text = read(own.certificate);
    for (std::size_t cut : {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 30})
        expect_refused(write("cut", text.substr(0, cut)), own.key, "tls_cert", "no certificate");
    expect_refused(write("broken", text + text.substr(0, text.size() / 2)), own.key, "tls_cert",
                   "of its chain is broken");
    expect_refused(own.certificate, write("long", std::string(2 << 20, 'x')), "tls_key", "long");
    // A key with a password is refused without asking for it.
    expect_refused(own.certificate,
                   write("locked",
                         "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
                         "MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgx\n"
                         "-----END ENCRYPTED PRIVATE KEY-----\n"),
                   "tls_key", "without a password");
}

TEST_F(Files, ThatAreOutOfDateAreTakenWithAWarning) {
    const CertificateFiles old =
        write_certificate(folder(), "old", {.from_seconds = -7200, .to_seconds = -3600});
    const CertificateFiles early =
        write_certificate(folder(), "early", {.from_seconds = 3600, .to_seconds = 7200});
    EXPECT_NE(certificate_warning(*server_context(old.certificate, old.key))->find("ended on"),
              std::string::npos);
    EXPECT_NE(certificate_warning(*server_context(early.certificate, early.key))->find("begins on"),
              std::string::npos);
}

// Digests of other programs: sha256sum and git hash-object.
TEST_F(Files, HaveTheDigestsThatHubsName) {
    const std::string file = write("digest", "espalier\n");
    EXPECT_EQ(*sha256_of_file(file),
              "46d835ef8f25e16b20c0bfe0a44e5145e626b35052cf2616f6083095480a6b51");
    EXPECT_EQ(*git_blob_of_file(file), "3e62cfbb0576a963745d75b406dde3ea5914ef72");
    EXPECT_EQ(*git_blob_of_file(write("empty", "")), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    EXPECT_FALSE(sha256_of_file(folder() + "/none"));
    EXPECT_FALSE(git_blob_of_file(folder() + "/none"));
}

}  // namespace
}  // namespace espalier::tls
