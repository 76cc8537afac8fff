// SPDX-License-Identifier: Apache-2.0
// Who may ask. A server on 127.0.0.1 can be reached by every web page that its user opens, so three
// things are looked at besides the key:
//   Host    a page elsewhere can have its own name resolve to 127.0.0.1 (DNS rebinding). Without a
//           key only addresses, localhost and names that were allowed are taken.
//   Origin  is sent by browsers with a page's own name: it must be the server's, or allowed.
//   Content-Type  of a POST must be application/json, which a page elsewhere cannot send unasked.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.hpp"
#include "server/http.hpp"
#include "server/keys.hpp"

namespace espalier::server {

class Guard {
  public:
    struct Rules {
        std::vector<std::string> api_keys;         // empty: no key is asked for
        std::vector<std::string> allowed_hosts;    // "*": all
        std::vector<std::string> allowed_origins;  // "https://chat.example.org"; "*": all
    };
    explicit Guard(Rules rules) : rules_(std::move(rules)), keys_(rules_.api_keys) {}

    // See KeyRing.
    Expected<void> load_keys(const std::string& file) { return keys_.load(file); }
    std::size_t keys() const { return keys_.size(); }
    // is_open: of a route that needs no key. None: come in.
    std::optional<ApiError> check(const HttpRequest& head, bool is_open) const;
    // The key that the request has; null: none was needed.
    std::shared_ptr<const ApiKey> key_of(const HttpRequest& head) const;
    // A page at this origin may read the answers.
    bool allows_origin(std::string_view origin) const;

  private:
    bool allows_host(std::string_view host) const;

    Rules rules_;
    KeyRing keys_;
};

}  // namespace espalier::server
