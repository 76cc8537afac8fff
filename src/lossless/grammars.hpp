// SPDX-License-Identifier: Apache-2.0
// Random grammars for workloads, and requests that ask for them. Schemas keep to what JSON Schema's
// validators and xgrammar read alike: type, enum, const, properties, required,
// additionalProperties false, items, minItems, maxItems, minLength, maxLength, minimum, maximum,
// anyOf. Regexes: literals, classes, alternatives in groups and quantifiers. So a text that was
// held to one of them can be checked by programs that know nothing of us.
#pragma once

#include <string>
#include <vector>

#include "base/random.hpp"
#include "engine/request.hpp"
#include "grammar/specification.hpp"
#include "lossless/plain_run.hpp"

namespace espalier::lossless {

grammar::Specification random_specification(Random& random);

// Gives the request a grammar, a rule of its reasoning or both, mostly, and takes from it what does
// not go with them. markers: tokens that may end a reasoning. The subject has a compiler.
void constrain(Random& random, const Subject& subject, const std::vector<std::int32_t>& markers,
               engine::Request& request);

// A text that a grammar has held to its end, the reasoning before it left out.
struct HeldText {
    grammar::Specification specification;
    std::string text;
};

// A line of JSON: {"kind": …, "text": …, "choices": […], "output": …}; bytes that are no UTF-8
// become U+FFFD.
std::string json_line(const HeldText& held);

}  // namespace espalier::lossless
