// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "grammar/schema_rewriter.hpp"

namespace espalier::grammar {

Expected<OrderedJson> parse_bounded_json(std::string_view text, std::string_view what) {
    if (text.size() > SchemaLimits::kBytes)
        return fail(ErrorKind::exhausted, "{}: {} bytes, more than the limit of {}", what,
                    text.size(), SchemaLimits::kBytes);
    ESPALIER_RETURN_IF_ERROR(check_json_depth(text, what, {.max_depth = SchemaLimits::kDepth}));
    // Objects that keep their order look members up one by one: thousands would take seconds.
    if (const auto colons = std::ranges::count(text, ':'); colons > SchemaLimits::kMembers * 4)
        return fail(ErrorKind::exhausted, "{}: {} colons, more than the limit of {}", what, colons,
                    SchemaLimits::kMembers * 4);
    OrderedJson parsed = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_discarded()) return fail(ErrorKind::invalid, "{}: not JSON", what);
    return parsed;
}

Expected<OrderedJson> rewrite_schema(const OrderedJson& schema, bool strict) {
    ESPALIER_ASSIGN_OR_RETURN(OrderedJson written, SchemaRewriter(schema, strict).run());
    if (const auto name = endless_definition(written))
        return fail(ErrorKind::invalid, "json_schema: {} has no value of finite length", *name);
    return written;
}

Expected<std::string> rewrite_schema_text(std::string_view text, bool strict) {
    ESPALIER_ASSIGN_OR_RETURN(const OrderedJson parsed, parse_bounded_json(text, "json_schema"));
    ESPALIER_ASSIGN_OR_RETURN(const OrderedJson written, rewrite_schema(parsed, strict));
    return written.dump();
}

}  // namespace espalier::grammar
