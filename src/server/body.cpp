// SPDX-License-Identifier: Apache-2.0
#include "server/body.hpp"

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
        return fail(ErrorKind::invalid, "the body is not valid JSON: {}", error.what());
    }
    if (!keys.repeated.empty())
        return fail_field(ErrorKind::invalid, keys.repeated, "stands twice in one object");
    if (!value.is_object()) return fail(ErrorKind::invalid, "the body is no JSON object");
    return value;
}

}  // namespace espalier::server
