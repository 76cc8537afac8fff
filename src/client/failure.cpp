// SPDX-License-Identifier: Apache-2.0
#include "client/failure.hpp"

#include <array>
#include <utility>

namespace espalier::client {
namespace {

using Names = std::pair<std::string_view, std::string_view>;
constexpr std::array<Names, kFailureKinds> kNames = {{
    {"connect", "no connection"},
    {"timeout", "nothing came in time"},
    {"closed", "connection ended in the middle"},
    {"protocol", "no HTTP, or too much of it"},
    {"status", "HTTP status"},
    {"events", "no stream of events"},
    {"json", "event without the API's JSON"},
    {"server_error", "error event"},
    {"interrupted", "interrupted here"},
}};

const Names& names_of(FailureKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

}  // namespace

std::string_view failure_text(FailureKind kind) { return names_of(kind).second; }
std::string_view failure_name(FailureKind kind) { return names_of(kind).first; }

}  // namespace espalier::client
