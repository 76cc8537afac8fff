// SPDX-License-Identifier: Apache-2.0
#include "lossless/grammars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.hpp"

namespace espalier::lossless {
namespace {

using Json = nlohmann::ordered_json;
using grammar::Specification;

std::string word(Random& random, int least, int most) {
    std::string letters;
    for (int i = random.between(least, most); i > 0; --i)
        letters.push_back(static_cast<char>('a' + random.between(0, 25)));
    return letters;
}

Json schema(Random& random, int depth);

Json object_schema(Random& random, int depth) {
    Json properties = Json::object(), required = Json::array();
    for (int i = random.between(1, 3); i > 0; --i) {
        const std::string name = word(random, 1, 8);
        properties[name] = schema(random, depth - 1);
        if (random.chance(0.7)) required.push_back(name);
    }
    Json made = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    // A name may have come twice.
    std::sort(required.begin(), required.end());
    required.erase(std::unique(required.begin(), required.end()), required.end());
    if (!required.empty()) made["required"] = required;
    return made;
}

Json leaf_schema(Random& random) {
    switch (random.between(0, 6)) {
        case 0:
            return {{"type", "boolean"}};
        case 1:
            return {{"type", "null"}};
        case 2:
            return {{"type", "integer"}};
        case 3: {
            const int least = random.between(-20, 40);
            return {{"type", "integer"},
                    {"minimum", least},
                    {"maximum", least + random.between(0, 300)}};
        }
        case 4: {
            const int least = random.between(0, 2);
            return {{"type", "string"},
                    {"minLength", least},
                    {"maxLength", least + random.between(0, 5)}};
        }
        case 5: {
            Json values = Json::array({word(random, 1, 6), "naïve ☃"});
            if (random.chance(0.5)) values.push_back(random.between(-9, 999));
            if (random.chance(0.3)) values.push_back(nullptr);
            return {{"enum", values}};
        }
        default:
            return {{"const", word(random, 0, 12)}};
    }
}

Json schema(Random& random, int depth) {
    if (depth > 0 && random.chance(0.5)) {
        if (random.chance(0.5)) return object_schema(random, depth);
        if (random.chance(0.3))
            return {{"anyOf", Json::array({leaf_schema(random), schema(random, depth - 1)})}};
        const int least = random.between(0, 2);
        return {{"type", "array"},
                {"items", schema(random, depth - 1)},
                {"minItems", least},
                {"maxItems", least + random.between(0, 2)}};
    }
    return leaf_schema(random);
}

std::string regex(Random& random) {
    std::string made;
    for (int i = random.between(1, 4); i > 0; --i) {
        switch (random.between(0, 3)) {
            case 0:
                made += word(random, 1, 4);
                continue;
            case 1:
                made += random.chance(0.5) ? "[0-9]" : "[a-f_]";
                break;
            case 2: {
                const std::string one = word(random, 1, 3);
                made += fmt::format("({}|{}|\\.)", one, word(random, 1, 5));
                break;
            }
            default:
                made += "[^a-y\\n]";
                break;
        }
        constexpr const char* kQuantifiers[] = {"", "?", "{1,3}", "{2}", "+", "*"};
        made += random.one_of(kQuantifiers);
    }
    return made;
}

std::vector<std::string> choices(Random& random) {
    const std::string stem = word(random, 0, 4);
    std::vector<std::string> made;
    for (int i = random.between(2, 5); i > 0; --i) made.push_back(stem + word(random, 1, 5));
    made.push_back(stem + "é");
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    return made;
}

std::int32_t marker(Random& random, const std::vector<std::int32_t>& markers,
                    const engine::Request& request, std::span<const std::int32_t> eos) {
    for (;;) {
        const std::int32_t token =
            random.chance(0.7) ? markers[random.bits() % markers.size()] : random.between(3, 300);
        const auto in = [token](std::span<const std::int32_t> ids) {
            return std::ranges::find(ids, token) != ids.end();
        };
        // Special tokens (0 to 4) may be a request's stop strings.
        if (token > 4 && !in(eos) && !in(request.output.stop_token_ids)) return token;
    }
}

}  // namespace

Specification random_specification(Random& random) {
    Specification made;
    switch (random.between(0, 9)) {
        case 0:
        case 1:
            made = {.kind = grammar::Kind::regex, .text = regex(random)};
            break;
        case 2:
            made = {.kind = grammar::Kind::choice, .choices = choices(random)};
            break;
        case 3:
            made = {.kind = grammar::Kind::ebnf,
                    .text = R"~(root ::= "(" root ")" | "[" root "]" | "x")~"};
            break;
        default:
            made = {.kind = grammar::Kind::json_schema, .text = schema(random, 2).dump()};
            made.any_whitespace = random.chance(0.3);
            break;
    }
    return made;
}

void constrain(Random& random, const Subject& subject, const std::vector<std::int32_t>& markers,
               engine::Request& request) {
    const auto& eos = subject.model.config().eos_token_ids;
    accept::OutputOptions& output = request.output;
    if (random.chance(0.8)) {
        const Specification wanted = random_specification(random);
        auto compiled = subject.compiler->compile(wanted);
        CHECK(compiled.has_value(), "{} {}: {}", grammar::name(wanted.kind), wanted.text,
              compiled.error().message);
        request.grammar = std::move(*compiled);
        output.ignore_eos = false;
        output.min_tokens = 0;
        request.forced_output.clear();
        if (random.chance(0.6)) output.stop.clear();
    }
    if (random.chance(0.4)) {
        accept::ReasoningRule rule;
        for (int i = random.between(1, 2); i > 0; --i)
            rule.end_token_ids.push_back(marker(random, markers, request, eos));
        rule.open = random.chance(0.9);
        if (random.chance(0.7)) rule.budget = random.between(0, 12);
        request.reasoning = rule;
        if (rule.budget) request.forced_output.clear();
    }
    if (request.is_constrained() && output.max_tokens > 0)
        output.max_tokens = std::max<std::int64_t>(output.max_tokens, random.between(30, 90));
}

std::string json_line(const HeldText& held) {
    const Json line = {{"kind", grammar::name(held.specification.kind)},
                       {"text", held.specification.text},
                       {"choices", held.specification.choices},
                       {"output", held.text}};
    return line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace espalier::lossless
