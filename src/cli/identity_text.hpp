// SPDX-License-Identifier: Apache-2.0
// The identity of a model's texts as inspect and serve --explain print it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/text_identity.hpp"

namespace espalier::cli {

std::string identity_text(const TextIdentity& identity);
// A text that is not known is null.
nlohmann::ordered_json identity_json(const TextIdentity& identity);

}  // namespace espalier::cli
