// SPDX-License-Identifier: Apache-2.0
// systemd's protocol for services of Type=notify: a datagram that says how the process stands.
#pragma once

#include <string_view>

namespace espalier::cli {

// "READY=1" or "STOPPING=1". Goes to the socket of NOTIFY_SOCKET; does nothing without one.
void notify_service_manager(std::string_view state);

}  // namespace espalier::cli
