// SPDX-License-Identifier: Apache-2.0
// The build without ZeroMQ's header.
#include "server/kv_events.hpp"

namespace espalier::server {

Expected<std::shared_ptr<KvEvents>> KvEvents::start(const KvEventOptions&, Log&) {
    return fail_field(ErrorKind::unsupported, "kv_events_endpoint",
                      "this build publishes no KV events (libzmq3-dev was not there)");
}

}  // namespace espalier::server
