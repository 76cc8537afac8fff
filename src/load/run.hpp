// SPDX-License-Identifier: Apache-2.0
// Runs a load against a server: sends what the schedule says, records what comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/http_client.hpp"
#include "load/options.hpp"
#include "load/recorder.hpp"

namespace espalier::load {

struct Progress {
    double seconds = 0;
    std::int64_t sent = 0, ended = 0, failed = 0;
    std::int64_t pieces = 0;  // of text, about one for each token
};

enum class RunEnd {
    complete,
    interrupted,  // Ctrl-C
    server_gone,  // kGoneAfter requests in a row got no connection or no answer in time
};
inline constexpr std::int64_t kGoneAfter = 5;

struct RunResult {
    double seconds = 0;  // from the first sending to the last end
    RunEnd end = RunEnd::complete;
    std::vector<RequestRecord> records = {};  // of the requests that were sent, in their order
};

// progress: a few times a second.
RunResult run_load(client::HttpClient& client, const LoadOptions& options,
                   const std::function<void(const Progress&)>& progress);

}  // namespace espalier::load
