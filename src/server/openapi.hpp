// SPDX-License-Identifier: Apache-2.0
// GET /openapi.json: the server's paths and what their bodies may have, as OpenAPI 3.1. Bodies are
// described by the readers that check them (Fields::describing), so neither knows a field that the
// other does not. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace espalier::server {

struct DescribedRoute {
    const char* method;
    const char* path;  // a * at its end stands for a name
    const char* summary;
    bool is_open;                              // needs no key
    void (*describe)(nlohmann::json& schema);  // the body; null: there is none
};

std::string openapi_json(std::span<const DescribedRoute> routes);

}  // namespace espalier::server
