// SPDX-License-Identifier: Apache-2.0
#include "server/openapi.hpp"

#include <algorithm>
#include <string_view>

#include "espalier/version.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

Json text_schema() { return {{"type", "string"}}; }

Json object_schema(Json properties) {
    return {{"type", "object"}, {"properties", std::move(properties)}};
}

// The error of OpenAI's clients, and that of Anthropic's.
Json error_schema(bool is_messages) {
    if (is_messages)
        return object_schema(
            {{"type", text_schema()},
             {"error", object_schema({{"type", text_schema()}, {"message", text_schema()}})}});
    const Json maybe_text = {{"type", {"string", "null"}}};
    return object_schema(
        {{"error", object_schema({{"message", text_schema()},
                                  {"type", text_schema()},
                                  {"param", maybe_text},
                                  {"code", {{"type", {"string", "integer", "null"}}}}})}});
}

Json reference(bool is_messages) {
    return {{"$ref",
             is_messages ? "#/components/schemas/MessagesError" : "#/components/schemas/Error"}};
}

Json operation(const DescribedRoute& route) {
    const std::string_view path = route.path;
    const bool is_messages = path.starts_with("/v1/messages");
    Json made = {
        {"summary", route.summary},
        {"responses",
         {{"200", {{"description", "The answer; a stream of events where one was asked for."}}},
          {"default",
           {{"description", "An error."},
            {"content", {{"application/json", {{"schema", reference(is_messages)}}}}}}}}}};
    if (route.is_open) made["security"] = Json::array();
    if (path.ends_with('*'))
        made["parameters"] = Json::array(
            {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", text_schema()}}});
    if (route.describe == nullptr) return made;
    Json schema;
    route.describe(schema);
    made["requestBody"] = {{"required", true},
                           {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
    return made;
}

}  // namespace

std::string openapi_json(std::span<const DescribedRoute> routes) {
    Json paths = Json::object();
    for (const DescribedRoute& route : routes) {
        std::string path = route.path;
        if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{id}");
        std::string method = route.method;
        std::ranges::transform(method, method.begin(),
                               [](char c) { return static_cast<char>(c - 'A' + 'a'); });
        paths[path][method] = operation(route);
    }
    return Json{
        {"openapi", "3.1.0"},
        {"info", {{"title", "Espalier"}, {"version", ESPALIER_VERSION}}},
        {"paths", std::move(paths)},
        {"security", {{{"bearer", Json::array()}}, {{"key", Json::array()}}}},
        {"components",
         {{"schemas", {{"Error", error_schema(false)}, {"MessagesError", error_schema(true)}}},
          {"securitySchemes",
           {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
            {"key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}}}}}}
        .dump();
}

}  // namespace espalier::server
