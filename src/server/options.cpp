// SPDX-License-Identifier: Apache-2.0
#include "server/options.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace espalier::server {
namespace {

struct Check {
    Expected<void> result;

    template <typename Number>
    void operator()(const Flag& flag, const Number& value) {
        const auto number = static_cast<double>(value);
        if (result && !(number >= flag.least && number <= flag.most))
            result = fail_field(ErrorKind::invalid, flag.name, "{}, not within {}…{}", value,
                                flag.least, flag.most);
    }
    void operator()(const Flag& flag, const std::string& value) {
        if (!result || flag.one_of.empty() || std::ranges::count(flag.one_of, value) > 0) return;
        result = fail_field(ErrorKind::invalid, flag.name, "{}, not one of {}", value,
                            fmt::join(flag.one_of, ", "));
    }
    void operator()(const Flag& flag, const std::vector<std::string>& values) {
        for (const std::string& value : values)
            if (result && value.empty())
                result = fail_field(ErrorKind::invalid, flag.name, "is empty");
    }
};

}  // namespace

Expected<void> check_options(const ServerOptions& options) {
    Check check;
    ServerOptions::flags(check, options);
    ESPALIER_RETURN_IF_ERROR(check.result);
    if (options.tls_cert.empty() != options.tls_key.empty()) {
        const bool has_key = options.tls_cert.empty();
        return fail_field(ErrorKind::invalid, has_key ? "tls_key" : "tls_cert", "given without {}",
                          has_key ? "its certificate" : "its private key");
    }
    const std::string& without = !options.kv_events_replay_endpoint.empty()
                                     ? options.kv_events_replay_endpoint
                                     : options.kv_events_topic;
    if (options.kv_events_endpoint.empty() && !without.empty())
        return fail_field(ErrorKind::invalid,
                          options.kv_events_replay_endpoint.empty() ? "kv_events_topic"
                                                                    : "kv_events_replay_endpoint",
                          "{}: given without kv_events_endpoint", without);
    return {};
}

}  // namespace espalier::server
