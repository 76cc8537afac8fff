// SPDX-License-Identifier: Apache-2.0
#include "chat/call_arguments.hpp"

#include <algorithm>
#include <limits>

namespace espalier::chat {

std::vector<const Value*> bind(const CallArguments& arguments, std::string_view what,
                               std::initializer_list<std::string_view> parameters,
                               std::size_t required) {
    if (arguments.positional.size() > parameters.size())
        fail_template(ErrorKind::invalid, "{} takes at most {} arguments, got {}", what,
                      parameters.size(), arguments.positional.size());
    std::vector<const Value*> bound(parameters.size());
    for (std::size_t i = 0; i < arguments.positional.size(); ++i)
        bound[i] = &arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
        const auto found = std::ranges::find(parameters, std::string_view(name));
        if (found == parameters.end())
            fail_template(ErrorKind::unsupported, "{} has no argument '{}' here", what, name);
        const Value*& place = bound[static_cast<std::size_t>(found - parameters.begin())];
        if (place) fail_template(ErrorKind::invalid, "{} got '{}' twice", what, name);
        place = &value;
    }
    for (std::size_t i = 0; i < required; ++i)
        if (!bound[i])
            fail_template(ErrorKind::invalid, "{} needs '{}'", what, *(parameters.begin() + i));
    return bound;
}

const Text& text_argument(const Value& value, std::string_view what) {
    const Text* text = value.text();
    if (!text)
        fail_template(ErrorKind::invalid, "{} needs a text, not a {}", what, value.type_name());
    return *text;
}

std::int64_t integer_argument(const Value& value, std::string_view what) {
    Number number;
    if (!to_number(value, number) || number.is_real)
        fail_template(ErrorKind::invalid, "{} needs an integer, not a {}", what, value.type_name());
    // Positions and counts beyond this are beyond every sequence.
    using Bounds = std::numeric_limits<std::int64_t>;
    return static_cast<std::int64_t>(
        std::clamp<Integer>(number.integer, Bounds::min() + 1, Bounds::max()));
}

}  // namespace espalier::chat
