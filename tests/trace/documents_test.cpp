// SPDX-License-Identifier: Apache-2.0
// docs/trace.md lists every field of every line; what the writer emits is compared with its tables.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "support/paths.hpp"
#include "trace/samples.hpp"

namespace espalier::trace {
namespace {

using Fields = std::map<std::string, std::string>;  // "step rows[].q_len" → "integer"

// Rows of the form | `rows[].form` text | … | below a heading ## … `step`; without a type: integer.
Fields documented() {
    std::ifstream in(std::string(test::source_directory()) + "/docs/trace.md");
    EXPECT_TRUE(in.good());
    const std::regex heading("^## .*`([a-z]+)`"),
        row("^\\| `([a-z_0-9.\\[\\]]+)`(?: ([a-z]+))? \\|");
    Fields fields;
    std::string kind;
    for (std::string line; std::getline(in, line);) {
        std::smatch match;
        if (std::regex_search(line, match, heading)) kind = match[1];
        if (!std::regex_search(line, match, row)) continue;
        EXPECT_FALSE(kind.empty()) << line;
        const std::string type = match[2].matched ? std::string(match[2]) : "integer";
        EXPECT_TRUE(fields.emplace(kind + " " + std::string(match[1]), type).second)
            << line << " stands twice";
    }
    return fields;
}

std::string type_of(const nlohmann::json& value) {
    if (value.is_boolean()) return "flag";
    if (value.is_string()) return "text";
    if (value.is_number_integer()) return "integer";
    return value.is_number() ? "number" : "other";
}

void collect(const nlohmann::json& value, const std::string& path, Fields& fields) {
    if (value.is_object()) {
        for (const auto& [name, inner] : value.items())
            collect(inner, path.back() == ' ' ? path + name : path + "." + name, fields);
    } else if (value.is_array()) {
        for (const auto& inner : value) collect(inner, path + "[]", fields);
    } else {
        fields.emplace(path, type_of(value));
    }
}

Fields emitted() {
    std::vector<Event> events = sample_events();
    events.push_back(End{});
    Fields fields;
    for (const std::string& line : lines_of(file_of(sample_header(), events))) {
        const auto object = nlohmann::json::parse(line);
        collect(object, object["kind"].get<std::string>() + " ", fields);
    }
    for (auto field = fields.begin(); field != fields.end();)  // "kind" is told once, above all
        field = field->first.ends_with(" kind") ? fields.erase(field) : std::next(field);
    return fields;
}

TEST(TraceDocuments, ThePageHasEveryFieldThatIsWrittenAndNoOther) {
    const Fields page = documented(), lines = emitted();
    EXPECT_GT(lines.size(), 60u);
    for (const auto& [field, type] : lines) {
        const auto found = page.find(field);
        ASSERT_NE(found, page.end()) << field << " is not in docs/trace.md";
        EXPECT_EQ(found->second, type) << field;
    }
    for (const auto& [field, type] : page)
        EXPECT_TRUE(lines.count(field)) << field << " is in docs/trace.md, but is never written";
}

}  // namespace
}  // namespace espalier::trace
