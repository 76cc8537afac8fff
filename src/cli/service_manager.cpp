// SPDX-License-Identifier: Apache-2.0
#include "cli/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace espalier::cli {

void notify_service_manager(std::string_view state) {
    const char* given = std::getenv("NOTIFY_SOCKET");
    const std::string_view name = given == nullptr ? "" : given;
    sockaddr_un address{};
    if (name.empty() || name.size() >= sizeof address.sun_path) return;
    if (name[0] != '/' && name[0] != '@') return;  // a path or an abstract name
    address.sun_family = AF_UNIX;
    std::ranges::copy(name, address.sun_path);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const int sender = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sender < 0) return;
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    // Nothing can be done about a manager that does not listen, and a server can serve without one.
    [[maybe_unused]] const auto sent = ::sendto(sender, state.data(), state.size(), MSG_NOSIGNAL,
                                                reinterpret_cast<const sockaddr*>(&address), size);
    ::close(sender);
}

}  // namespace espalier::cli
