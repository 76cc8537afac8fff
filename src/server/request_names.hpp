// SPDX-License-Identifier: Apache-2.0
// Names that a request goes by in answers, logs and traces.
#pragma once

#include <string>
#include <string_view>

namespace espalier::server {

// 1 to 128 of visible ASCII: no header, log or trace can mean something else by it.
bool is_request_id(std::string_view id);
std::string new_request_id();
// version-trace-parent-flags in lower-case hex, neither id all zeros (w3.org/TR/trace-context);
// later versions may go on behind it.
bool is_traceparent(std::string_view text);

}  // namespace espalier::server
