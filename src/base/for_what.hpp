// SPDX-License-Identifier: Apache-2.0
// Says of an error what was to be done when it happened.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "base/error.hpp"

namespace espalier {

// "the activations of a step: cannot allocate …". A field's error keeps beginning with its field.
template <typename T>
Expected<T> for_what(Expected<T> result, std::string_view what) {
    if (!result && result.error().field.empty())
        result.error().message = fmt::format("{}: {}", what, result.error().message);
    return result;
}

}  // namespace espalier
