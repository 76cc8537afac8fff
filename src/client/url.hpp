// SPDX-License-Identifier: Apache-2.0
// The address of an OpenAI-compatible server, as people write it.
#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::client {

struct Url {
    std::string host;  // a name or an address; of IPv6 without brackets
    std::string port;
    std::string path;  // before /v1/…; no slash at its end
    // The Host header's form.
    std::string authority() const;
};

// http://host[:port][/path]; a /v1 at the end is taken for the API's own, as OpenAI's clients have
// it in their base_url. https is refused: nothing here encrypts.
Expected<Url> parse_url(std::string_view text);

}  // namespace espalier::client
