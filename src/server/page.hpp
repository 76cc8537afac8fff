// SPDX-License-Identifier: Apache-2.0
// The page that a server shows at /: one HTML text that asks for nothing outside of the server.
// Its parts lie in page/; the build puts them together (page/embed.cmake).
#pragma once

#include <string_view>

namespace espalier::server {

std::string_view page_html();

}  // namespace espalier::server
