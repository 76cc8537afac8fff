// SPDX-License-Identifier: Apache-2.0
#include "client/models.hpp"

#include <nlohmann/json.hpp>

#include "base/json.hpp"

namespace espalier::client {

Expected<std::string> first_model(HttpClient& client) {
    constexpr std::size_t kMaxBytes = 1 << 20;
    ESPALIER_ASSIGN_OR_RETURN(const std::string body,
                              fetch(client, {.method = "GET", .path = "/v1/models"}, kMaxBytes));
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json models, parse_json(body, "/v1/models"));
    const nlohmann::json::json_pointer id("/data/0/id");
    if (!models.is_object() || !models.contains(id) || !models[id].is_string())
        return fail(ErrorKind::invalid, "/v1/models names no model: say which one is meant");
    return models[id].get<std::string>();
}

}  // namespace espalier::client
