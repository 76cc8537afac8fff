// SPDX-License-Identifier: Apache-2.0
#include "server/body.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

// Follows the parser and keeps the first key that an object has twice: two readers of one body must
// not see two requests.
class RepeatedKeys {
  public:
    bool operator()(int, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start) open_.emplace_back();
        if (event == Json::parse_event_t::object_end) open_.pop_back();
        if (event == Json::parse_event_t::key && repeated.empty()) {
            const auto& key = value.get_ref<const std::string&>();
            if (!open_.back().insert(key).second) repeated = key;
        }
        return true;
    }
    std::string repeated;

  private:
    std::vector<std::set<std::string>> open_;
};

// The largest number of keys in one object of the value.
std::size_t most_keys(const Json& value) {
    if (!value.is_structured()) return 0;
    std::size_t most = value.is_object() ? value.size() : 0;
    for (const Json& inner : value) most = std::max(most, most_keys(inner));
    return most;
}

}  // namespace

Expected<nlohmann::json> parse_body(std::string_view body) {
    if (body.find('{') == std::string_view::npos)
        return fail(ErrorKind::invalid, "the body is no JSON object");
    RepeatedKeys keys;
    Json value;
    ESPALIER_RETURN_IF_ERROR(check_json_depth(body, "the body", {.max_depth = kMaxBodyDepth}));
    try {
        value = Json::parse(body.begin(), body.end(), std::ref(keys));
    } catch (const Json::exception& error) {
        // Behind the library's own name for the error: "[json.exception.parse_error.101] …".
        const std::string_view what = error.what();
        const std::size_t begin = what.starts_with('[') ? what.find("] ") : what.npos;
        return fail(ErrorKind::invalid, "the body is not valid JSON: {}",
                    begin == what.npos ? what : what.substr(begin + 2));
    }
    if (!keys.repeated.empty())
        return fail_field(ErrorKind::invalid, keys.repeated, "stands twice in one object");
    if (!value.is_object()) return fail(ErrorKind::invalid, "the body is no JSON object");
    return value;
}

Expected<nlohmann::ordered_json> parse_ordered(std::string_view body, const Json& parsed,
                                               std::span<const char* const> names) {
    using Ordered = nlohmann::ordered_json;
    bool any = false;
    for (const char* name : names) {
        const auto found = parsed.find(name);
        if (found == parsed.end()) continue;
        any = any || found->is_structured();
        if (const std::size_t keys = most_keys(*found); keys > kMaxOrderedKeys)
            return fail_field(ErrorKind::invalid, name, "an object with {} keys, at most {}", keys,
                              kMaxOrderedKeys);
    }
    if (!any) return Ordered::object();
    // Other fields are left out, so their objects cost no search.
    return Ordered::parse(
        body.begin(), body.end(), [&](int depth, Ordered::parse_event_t event, Ordered& value) {
            return depth != 1 || event != Ordered::parse_event_t::key ||
                   std::ranges::find(names, value.get_ref<const std::string&>()) != names.end();
        });
}

nlohmann::ordered_json ordered_field(const nlohmann::ordered_json& ordered, const char* name) {
    const auto found = ordered.find(name);
    return found == ordered.end() ? nlohmann::ordered_json() : *found;
}

}  // namespace espalier::server
