// SPDX-License-Identifier: Apache-2.0
#include "server/zmq_library.hpp"

#include <dlfcn.h>

namespace espalier::server {
namespace {

constexpr const char* kZmqFile = "libzmq.so.5";

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

}  // namespace

Expected<ZmqLibrary> ZmqLibrary::load() {
    void* library = dlopen(kZmqFile, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        return fail(ErrorKind::unsupported, "{} is not on this machine (apt-get install libzmq5)",
                    kZmqFile);
    ZmqLibrary functions;
#define ESPALIER_ZMQ_LOOK_UP(name)                       \
    if (!look_up(library, "zmq_" #name, functions.name)) \
        return fail(ErrorKind::unsupported, "{}: no zmq_" #name, kZmqFile);
    ESPALIER_ZMQ_FUNCTIONS(ESPALIER_ZMQ_LOOK_UP)
#undef ESPALIER_ZMQ_LOOK_UP
    return functions;
}

}  // namespace espalier::server
