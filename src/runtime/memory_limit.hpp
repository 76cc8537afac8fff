// SPDX-License-Identifier: Apache-2.0
// The memory that a control group allows this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace espalier::runtime {

// Bytes; none: no limit. Version 2 first (memory.max), then version 1
// (memory/memory.limit_in_bytes, whose "no limit" is a number larger than any machine's memory).
std::optional<std::int64_t> control_group_limit(const std::string& root = "/sys/fs/cgroup");

}  // namespace espalier::runtime
