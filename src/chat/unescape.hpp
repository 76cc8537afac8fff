// SPDX-License-Identifier: Apache-2.0
// The text of a string literal: Python's unicode-escape, as jinja2 applies it.
#pragma once

#include <string>
#include <string_view>

namespace espalier::chat {

// literal: what stands between the quotes. Throws Failure.
std::string unescape(std::string_view literal);

}  // namespace espalier::chat
