// SPDX-License-Identifier: Apache-2.0
#include "server/engine_texts.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "server/generation_request.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

std::string reported_text(const Json& choice) {
    std::string text;
    for (const Json& token : choice["speculation"]["tokens"])
        text += token["text"].get<std::string>();
    return text;
}

}  // namespace

engine::Stream submit_body(runtime::Runtime& runtime, const Json& body) {
    auto parsed = parse_generation_request(body, nlohmann::ordered_json::object(), Api::completions,
                                           runtime.files().checkpoint->generation());
    if (!parsed) throw std::runtime_error(parsed.error().message);
    engine::Request request = parsed->engine;
    request.prompt =
        runtime.files()
            .encode_prompt(std::get<std::string>(parsed->prompts[0]), text::SpecialTokens::parsed)
            .value();
    auto stream = runtime.engine().submit(std::move(request));
    if (!stream) throw std::runtime_error(stream.error().message);
    return std::move(*stream);
}

std::vector<std::string> texts_of(engine::Stream& stream) {
    engine::Updates updates;
    std::vector<std::string> texts;
    while (stream.next(updates)) {
        texts.resize(updates.choices.size());
        for (std::size_t i = 0; i < texts.size(); ++i) texts[i] += updates.choices[i].emission.text;
    }
    return texts;
}

std::vector<std::string> texts_of(const Answer& answer, std::size_t choices) {
    std::vector<std::string> texts(choices);
    const auto add = [&](const Json& object) {
        for (const Json& choice : object["choices"]) {
            const auto text = choice["text"].get<std::string>();
            texts[choice["index"].get<std::size_t>()] += text;
            if (choice.contains("speculation")) {
                EXPECT_EQ(reported_text(choice), text);
            }
        }
    };
    if (answer.headers.at("content-type") == "application/json") {
        add(answer.json());
        return texts;
    }
    const std::vector<std::string> events = answer.events();
    EXPECT_EQ(events.back(), "[DONE]");
    for (std::size_t i = 0; i + 1 < events.size(); ++i) add(Json::parse(events[i]));
    return texts;
}

}  // namespace espalier::server::test
