// SPDX-License-Identifier: Apache-2.0
#include "base/text_identity.hpp"

#include <utility>

namespace espalier {
namespace {

class Lister {
  public:
    explicit Lister(std::vector<IdentityField>& out) : out_(out) {}
    void text(std::string_view name, const std::string& value) { out_.push_back({name, value}); }
    void integer(std::string_view name, std::int64_t value, std::int64_t, std::int64_t) {
        out_.push_back({name, std::to_string(value)});
    }

  private:
    std::vector<IdentityField>& out_;
};

}  // namespace

std::vector<IdentityField> listed(const TextIdentity& identity) {
    std::vector<IdentityField> fields;
    Lister lister(fields);
    TextIdentity::fields(lister, identity);
    return fields;
}

std::optional<IdentityDifference> difference(const TextIdentity& recorded,
                                             const TextIdentity& here) {
    std::vector<IdentityField> a = listed(recorded), b = listed(here);
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].value == b[i].value || a[i].value.empty() || b[i].value.empty()) continue;
        return IdentityDifference{a[i].name, std::move(a[i].value), std::move(b[i].value)};
    }
    return std::nullopt;
}

}  // namespace espalier
