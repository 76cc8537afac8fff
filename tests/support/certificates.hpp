// SPDX-License-Identifier: Apache-2.0
// Certificates for tests, made when they are wanted: self-signed, for 127.0.0.1 and localhost.
#pragma once

#include <string>

namespace espalier::test {

struct CertificateFiles {
    std::string certificate, key;  // paths
};

struct CertificateWishes {
    std::string name = "localhost";  // beside 127.0.0.1
    bool has_addresses = true;
    long from_seconds = -3600, to_seconds = 30L * 86400;  // from now
};

// FOLDER/NAME.pem and FOLDER/NAME.key.
CertificateFiles write_certificate(const std::string& folder, const std::string& file_name,
                                   const CertificateWishes& wishes = {});

}  // namespace espalier::test
