// SPDX-License-Identifier: Apache-2.0
// The line that coding agents put before the system prompt of /v1/messages for Anthropic's billing:
//   x-anthropic-billing-header: cc_version=2.1.117.48f; cc_entrypoint=cli; cch=71fea;
// cch changes with every request, so a prompt that has the line shares no cached page with the
// requests before it. The line says nothing to a model. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace espalier::server {

// Bytes of the header at the beginning of a system prompt, the end of its line included; 0: the
// prompt does not begin with one. Only the whole form is one: the name, then "key=value;" once or
// more, then the end of the line or of the text.
std::size_t billing_header_bytes(std::string_view system);

}  // namespace espalier::server
