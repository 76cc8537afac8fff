// SPDX-License-Identifier: Apache-2.0
// Addresses as people and servers write them.
#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::client {

struct Url {
    std::string host;  // a name or an address; of IPv6 without brackets
    std::string port;
    std::string path;     // before /v1/…; no slash at its end
    bool secure = false;  // https
    // The Host header's form.
    std::string authority() const;
    // Without the path: what a connection and a secret belong to.
    std::string origin() const;
};

// http[s]://host[:port][/path] of an OpenAI-compatible server; a /v1 at the end is taken for the
// API's own, as OpenAI's clients have it in their base_url.
Expected<Url> parse_url(std::string_view text);

// Any address, as a redirect has it.
struct Target {
    Url server;        // its path is empty
    std::string path;  // with the query; begins with a slash
};
Expected<Target> parse_target(std::string_view text);

}  // namespace espalier::client
