// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tls/context.hpp"
#include "tls/digest.hpp"

namespace espalier::tls {
namespace {

TEST(WithoutTls, EverythingIsRefusedByName) {
    EXPECT_EQ(server_context("a", "b").error().field, "tls_cert");
    for (const std::string& message :
         {server_context("a", "b").error().message, client_context().error().message,
          sha256_of_file("a").error().message, git_blob_of_file("a").error().message})
        EXPECT_NE(message.find("this build has no TLS"), std::string::npos) << message;
}

}  // namespace
}  // namespace espalier::tls
