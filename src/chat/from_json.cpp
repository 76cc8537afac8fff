// SPDX-License-Identifier: Apache-2.0
#include "chat/from_json.hpp"

#include <nlohmann/json.hpp>

#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

constexpr int kMaxDepth = 64;

// Place of a value in the request, for messages: "messages[3].content".
struct Path {
    const Path* parent = nullptr;
    std::string_view key = {};
    std::size_t index = 0;

    std::string name() const {
        std::string before = parent ? parent->name() : std::string();
        if (!parent) return before;
        if (key.data() == nullptr) return before + fmt::format("[{}]", index);
        return before.empty() ? std::string(key) : before + "." + std::string(key);
    }
};

Text content(const std::string& bytes, const Path& path, Budget& budget) {
    budget.touch(bytes.size());
    if (const std::size_t valid = text::valid_utf8_prefix(bytes); valid != bytes.size())
        fail_template(ErrorKind::invalid, "{}: not valid UTF-8 at byte {}", path.name(), valid);
    return Text::content_of(bytes);
}

template <typename Json>
Value convert(const Json& json, const Path& path, int depth, Budget& budget) {
    budget.step();
    if (depth > kMaxDepth)
        fail_template(ErrorKind::exhausted, "{}: nested more than {} deep", path.name(), kMaxDepth);
    switch (json.type()) {
        case Json::value_t::boolean:
            return Value(json.template get<bool>());
        case Json::value_t::number_integer:
            return Value(static_cast<Integer>(json.template get<std::int64_t>()));
        case Json::value_t::number_unsigned:
            return Value(static_cast<Integer>(json.template get<std::uint64_t>()));
        case Json::value_t::number_float:
            return Value(json.template get<double>());
        case Json::value_t::string:
            return Value(content(json.template get_ref<const std::string&>(), path, budget));
        case Json::value_t::array: {
            List list;
            for (const Json& item : json) {
                const Path here{.parent = &path, .index = list.items.size()};
                list.items.push_back(convert(item, here, depth + 1, budget));
            }
            return Value(std::move(list));
        }
        case Json::value_t::object: {
            Dict dict;
            for (const auto& [key, item] : json.items()) {
                const Path here{.parent = &path, .key = key};
                dict.entries.push_back({std::make_shared<const Text>(content(key, path, budget)),
                                        convert(item, here, depth + 1, budget)});
            }
            return Value(std::move(dict));
        }
        default:
            return Value();
    }
}

}  // namespace

Value from_json(const nlohmann::json& json, Budget& budget) {
    return convert(json, Path{}, 0, budget);
}
Value from_json(const nlohmann::ordered_json& json, Budget& budget) {
    return convert(json, Path{}, 0, budget);
}

}  // namespace espalier::chat
