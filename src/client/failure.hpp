// SPDX-License-Identifier: Apache-2.0
// Why a request has no answer, by kind, so that a run can count them.
#pragma once

#include <string>
#include <string_view>

namespace espalier::client {

enum class FailureKind {
    connect,       // no server took the connection
    timeout,       // nothing useful came for too long
    closed,        // the connection ended in the middle
    protocol,      // no HTTP, or a head or body beyond its limit
    status,        // an HTTP status other than 200
    events,        // no stream of events, or one beyond its limit
    json,          // an event whose data is no JSON of the API
    server_error,  // an event that says so
    interrupted,   // ended from this side
};
inline constexpr int kFailureKinds = 9;

// "connection refused or lost before a request", …: for people.
std::string_view failure_text(FailureKind kind);
// "connect", "timeout", …: for programs.
std::string_view failure_name(FailureKind kind);

struct Failure {
    FailureKind kind = FailureKind::connect;
    std::string message = {};
};

}  // namespace espalier::client
