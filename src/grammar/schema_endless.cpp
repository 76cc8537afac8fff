// SPDX-License-Identifier: Apache-2.0
// Definitions that can never end ({"a": itself, required}), as a least fixed point: a definition
// ends if it does so with those that are known to end.
#include <algorithm>
#include <set>

#include "grammar/regex.hpp"
#include "grammar/schema_rewriter.hpp"
#include "text/utf8.hpp"

namespace espalier::grammar {
namespace {

bool ends(const OrderedJson& schema, const std::set<std::string>& known) {
    if (!schema.is_object()) return true;
    if (schema.contains("$ref")) return known.contains(schema["$ref"].get<std::string>());
    if (schema.contains("anyOf"))
        return std::ranges::any_of(schema["anyOf"],
                                   [&](const OrderedJson& one) { return ends(one, known); });
    if (schema.contains("required"))
        for (const OrderedJson& name : schema["required"])
            if (!ends(schema["properties"][name.get<std::string>()], known)) return false;
    const std::int64_t least = schema.value("minItems", std::int64_t{0});
    std::int64_t first = 0;
    if (schema.contains("prefixItems"))
        for (const OrderedJson& item : schema["prefixItems"])
            if (first++ < least && !ends(item, known)) return false;
    return first >= least || !schema.contains("items") || ends(schema["items"], known);
}

struct NameNode {
    std::map<std::uint32_t, NameNode> next;
    bool name = false;
};

std::string others(const NameNode& node) {
    CodePointSet branching;
    for (const auto& [code_point, child] : node.next)
        branching.add(CodePointRange{code_point, code_point});
    const std::string any = written_class(plain_json_characters()) + "*";
    std::string text =
        fmt::format("{} {}", written_class(plain_json_characters().without(branching)), any);
    for (const auto& [code_point, child] : node.next) {
        const CodePointSet one{{code_point, code_point}};
        // A name with an escaped character is spelled in ways that no other key takes.
        if (one.without(plain_json_characters()).empty())
            text += fmt::format(" | {} {}", written_class(one), others(child));
    }
    return fmt::format("({}){}", text, node.name ? "" : "?");
}

}  // namespace

std::optional<std::string> endless_definition(const OrderedJson& written) {
    const OrderedJson none = OrderedJson::object();
    const OrderedJson& definitions = written.contains("$defs") ? written["$defs"] : none;
    std::set<std::string> known;
    for (bool more = true; more;) {
        more = false;
        const auto learn = [&](const std::string& pointer, const OrderedJson& schema) {
            if (!known.contains(pointer) && ends(schema, known))
                more |= known.insert(pointer).second;
        };
        learn("#", written);
        for (const auto& [name, schema] : definitions.items())
            learn(fmt::format("#/$defs/{}", name), schema);
    }
    if (!known.contains("#")) return "the schema";
    for (const auto& [name, schema] : definitions.items())
        if (!known.contains(fmt::format("#/$defs/{}", name)))
            return fmt::format("a definition ({})", schema.dump().substr(0, 60));
    return std::nullopt;
}

std::string pattern_of_other_names(const std::vector<std::string>& names) {
    NameNode root;
    for (const std::string& name : names) {
        NameNode* node = &root;
        for (std::size_t at = 0; at < name.size();
             at += text::utf8_length(static_cast<unsigned char>(name[at])))
            node = &node->next[text::code_point_at(name, at)];
        node->name = true;
    }
    return others(root);
}

}  // namespace espalier::grammar
