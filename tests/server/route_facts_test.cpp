// SPDX-License-Identifier: Apache-2.0
// What goes by the route that a path leads to: counters, the description, the form of errors.
#include <gtest/gtest.h>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

// One series a route and status, whatever paths clients make up.
TEST(Routes, AnswersAreCountedByRoute) {
    RunningServer server;
    for (const char* path : {"/nowhere", "/elsewhere", "/v1/models/a", "/v1/models/b"})
        EXPECT_EQ(server.client().get(path).status, 404) << path;
    Client client = server.client();
    EXPECT_EQ(client.post("/v1/completions", RunningServer::completion("a")).status, 200);
    const std::string text = client.get("/metrics").body;
    for (const char* labels :
         {R"(code="404",path="other"} 2)", R"(code="404",path="/v1/models/*"} 2)",
          R"(code="200",path="/v1/completions"} 1)"})
        EXPECT_NE(text.find(labels), std::string::npos) << labels;
}

TEST(Routes, DescribesItselfAsOpenApi) {
    RunningServer server;
    const Json document = server.client().get("/openapi.json").json();
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses",
                             "/v1/messages", "/v1/messages/count_tokens", "/tokenize"})
        EXPECT_TRUE(document["paths"][path]["post"]["requestBody"].is_object()) << path;
    EXPECT_EQ(document["paths"]["/v1/models/{id}"]["get"]["summary"], "One model");
}

// The form of an error goes by the path, also where the body never came in.
TEST(Routes, ErrorsOfHttpItselfHaveTheirApisForm) {
    RunningServer::Setup setup;
    setup.server.max_body_bytes = 1024;
    RunningServer server(setup);
    for (const char* path : {"/v1/messages", "/v1/chat/completions"}) {
        const Answer answer = server.client().post(path, std::string(2000, ' '));
        EXPECT_EQ(answer.status, 413);
        EXPECT_EQ(answer.json().contains("type"), std::string(path) == "/v1/messages");
    }
}

}  // namespace
}  // namespace espalier::server::test
