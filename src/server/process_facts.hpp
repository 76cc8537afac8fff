// SPDX-License-Identifier: Apache-2.0
// The numbers of this process that Prometheus' own libraries tell, from /proc.
#pragma once

#include <cstdint>
#include <optional>

namespace espalier::server {

struct ProcessFacts {
    double cpu_seconds = 0;                         // user and system
    std::int64_t resident = 0, virtual_memory = 0;  // bytes
    std::int64_t open_files = 0, max_files = 0, threads = 0;
    double start_seconds = 0;  // since 1970
};

// None: /proc is not there.
std::optional<ProcessFacts> process_facts();

}  // namespace espalier::server
