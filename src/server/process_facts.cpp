// SPDX-License-Identifier: Apache-2.0
#include "server/process_facts.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace espalier::server {
namespace {

// Fields of proc(5)'s stat that follow the name in parentheses, which may hold anything; counted
// from 3 in the manual.
std::vector<std::string> stat_fields() {
    std::ifstream in("/proc/self/stat");
    const std::string line{std::istreambuf_iterator<char>(in), {}};
    const std::size_t name_end = line.rfind(')');
    if (name_end == std::string::npos) return {};
    std::istringstream rest(line.substr(name_end + 1));
    return {std::istream_iterator<std::string>(rest), {}};
}

// Seconds since 1970 at which the machine started.
double boot_seconds() {
    std::ifstream in("/proc/stat");
    for (std::string word; in >> word;)
        if (double seconds = 0; word == "btime" && in >> seconds) return seconds;
    return 0;
}

}  // namespace

std::optional<ProcessFacts> process_facts() {
    const std::vector<std::string> fields = stat_fields();
    if (fields.size() < 22) return std::nullopt;
    const auto field = [&](std::size_t number) { return std::stod(fields[number - 3]); };
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    ProcessFacts facts;
    facts.cpu_seconds = (field(14) + field(15)) / ticks;
    facts.threads = static_cast<std::int64_t>(field(20));
    facts.start_seconds = boot_seconds() + field(22) / ticks;
    facts.virtual_memory = static_cast<std::int64_t>(field(23));
    facts.resident = static_cast<std::int64_t>(field(24)) * sysconf(_SC_PAGESIZE);
    std::error_code failure;
    for (std::filesystem::directory_iterator at("/proc/self/fd", failure), end;
         !failure && at != end; at.increment(failure))
        ++facts.open_files;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        facts.max_files = static_cast<std::int64_t>(limit.rlim_cur);
    return facts;
}

}  // namespace espalier::server
