// SPDX-License-Identifier: Apache-2.0
// Which model a server has.
#pragma once

#include <string>

#include "base/error.hpp"
#include "client/http_client.hpp"

namespace espalier::client {

// The first of GET /v1/models.
Expected<std::string> first_model(HttpClient& client);

}  // namespace espalier::client
