// SPDX-License-Identifier: Apache-2.0
// The description of the bodies against the readers: a field of another type than the one described
// is refused by its name, one of that type never for its type.
#include "server/openapi.hpp"

#include <gtest/gtest.h>

#include "accept/sampling_options.hpp"
#include "server/api/api_form.hpp"
#include "server/api/count_tokens.hpp"
#include "server/token_routes.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

const std::vector<Api> kApis = {Api::completions, Api::chat, Api::messages, Api::responses};

Json schema_of(Api api) {
    Json schema;
    form_of(api).describe(schema);
    return schema;
}

// A body with what must be there.
Json least_body(Api api) {
    const Json messages = {{{"role", "user"}, {"content", "a"}}};
    switch (api) {
        case Api::completions:
            return {{"prompt", "a"}};
        case Api::chat:
            return {{"messages", messages}};
        case Api::messages:
            return {{"messages", messages}, {"max_tokens", 1}};
        case Api::responses:
            return {{"input", "a"}};
    }
    return {};
}

Expected<GenerationRequest> parsed(Api api, const Json& body) {
    return form_of(api).parse(body.dump(), {.generation = {}});
}

// A value that is of none of the types that the schema names.
Json of_no_type(const Json& schema) {
    const std::string words = schema.dump();
    const auto names = [&](const char* type) {
        return words.find(std::string("\"") + type + "\"") != std::string::npos;
    };
    if (!names("boolean")) return true;
    return names("object") ? Json(7) : Json::object();
}

TEST(OpenApi, DescribesWhatIsRead) {
    for (const Api api : kApis) {
        const Json schema = schema_of(api);
        EXPECT_TRUE(parsed(api, least_body(api))) << schema;
        for (const Json& name : schema["required"]) {
            Json body = least_body(api);
            body.erase(name.get<std::string>());
            const auto without = parsed(api, body);
            ASSERT_FALSE(without) << name;
            EXPECT_EQ(without.error().field, name.get<std::string>());
        }
        EXPECT_EQ(schema["required"].size(), api == Api::messages ? 2u : 1u);
        for (const auto& [name, property] : schema["properties"].items()) {
            if (property.value("description", "").starts_with("Accepted")) continue;
            if (!property.contains("type") && !property.contains("anyOf")) continue;
            Json body = least_body(api);
            body[name] = of_no_type(property);
            const auto wrong = parsed(api, body);
            ASSERT_FALSE(wrong) << name << ": " << property;
            EXPECT_TRUE(wrong.error().field.starts_with(name))
                << name << ": " << wrong.error().field;
        }
    }
}

TEST(OpenApi, RangesAreThoseThatAreChecked) {
    for (const Api api : kApis) {
        const Json schema = schema_of(api);
        for (const auto& [name, property] : schema["properties"].items()) {
            if (property.value("type", Json()) != "integer" || name == "seed") continue;
            for (const bool below : {true, false}) {
                Json body = least_body(api);
                if (name == "top_logprobs") body["logprobs"] = true;
                const std::int64_t least = property["minimum"], most = property["maximum"];
                body[name] = below ? Json(least - 1) : Json(most + 1);
                const auto wrong = parsed(api, body);
                ASSERT_FALSE(wrong) << name << " " << body;
                EXPECT_TRUE(wrong.error().field.starts_with(name)) << wrong.error().field;
            }
        }
        accept::SamplingOptions sampling;
        accept::SamplingOptions::parameters(
            [&](const accept::Parameter& parameter, auto& value) {
                const Json property = schema["properties"][parameter.name];
                ASSERT_TRUE(property.is_object()) << parameter.name;
                if constexpr (std::is_same_v<decltype(value), float&>) {
                    EXPECT_EQ(property[parameter.above_least ? "exclusiveMinimum" : "minimum"],
                              parameter.least);
                }
            },
            sampling);
    }
}

TEST(OpenApi, WhatIsRefusedIsNotDescribed) {
    const auto described = [](Api api, const char* name) {
        return schema_of(api)["properties"].contains(name);
    };
    for (const char* name : {"functions", "suffix", "grammar", "tools"})
        EXPECT_FALSE(described(Api::completions, name)) << name;
    EXPECT_TRUE(described(Api::chat, "tools"));
    EXPECT_FALSE(described(Api::messages, "mcp_servers"));
    EXPECT_FALSE(described(Api::responses, "previous_response_id"));
}

TEST(OpenApi, TheDocumentNamesPathsKeysAndErrors) {
    const DescribedRoute routes[] = {
        {"GET", "/health", "Readiness", true, nullptr},
        {"GET", "/v1/models/*", "One model", false, nullptr},
        {"POST", "/tokenize", "Tokens", false, describe_tokenize},
        {"POST", "/v1/messages/count_tokens", "Count", false, describe_count_tokens}};
    const Json document = Json::parse(openapi_json(routes));
    EXPECT_EQ(document["openapi"], "3.1.0");
    EXPECT_EQ(document["paths"]["/health"]["get"]["security"], Json::array());
    EXPECT_EQ(document["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["name"], "id");
    const auto body = [&](const char* path) {
        return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
                       ["schema"];
    };
    EXPECT_EQ(body("/tokenize")["anyOf"].size(), 2u);
    EXPECT_EQ(body("/v1/messages/count_tokens")["required"], Json({"messages"}));
    EXPECT_TRUE(document["components"]["schemas"].contains("MessagesError"));
}

}  // namespace
}  // namespace espalier::server
