// SPDX-License-Identifier: Apache-2.0
#include "base/json.hpp"

#include <nlohmann/json.hpp>

namespace espalier {

// Strings are skipped. The parser itself keeps an explicit stack, but destroying or walking a deep
// value recurses.
Expected<void> check_json_depth(std::string_view text, std::string_view name, JsonLimits limits) {
    int depth = 0;
    bool in_string = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (in_string) {
            if (c == '\\') ++at;
            if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > limits.max_depth)
                return fail(ErrorKind::invalid, "{}: nested deeper than {} at byte {}", name,
                            limits.max_depth, at);
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return {};
}

Expected<nlohmann::json> parse_json(std::string_view text, std::string_view name,
                                    JsonLimits limits) {
    if (text.empty()) return fail(ErrorKind::invalid, "{}: empty, expected JSON", name);
    ESPALIER_RETURN_IF_ERROR(check_json_depth(text, name, limits));
    try {
        return nlohmann::json::parse(text.begin(), text.end());
    } catch (const nlohmann::json::exception& error) {
        return fail(ErrorKind::invalid, "{}: not valid JSON: {}", name, error.what());
    }
}

}  // namespace espalier
