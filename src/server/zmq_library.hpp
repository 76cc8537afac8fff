// SPDX-License-Identifier: Apache-2.0
// The functions of libzmq that publishing needs, looked up when they are wanted: the library comes
// with a dozen others, and most servers publish nothing.
#pragma once

#include <zmq.h>

#include "base/error.hpp"

namespace espalier::server {

// Each is the function zmq_NAME.
#define ESPALIER_ZMQ_FUNCTIONS(each)                                                        \
    each(ctx_new) each(ctx_term) each(socket) each(close) each(setsockopt) each(getsockopt) \
        each(bind) each(connect) each(poll) each(send) each(strerror) each(msg_init)        \
            each(msg_init_size) each(msg_data) each(msg_size) each(msg_copy) each(msg_send) \
                each(msg_recv) each(msg_more) each(msg_close)

struct ZmqLibrary {
#define ESPALIER_ZMQ_MEMBER(name) decltype(&zmq_##name) name = nullptr;
    ESPALIER_ZMQ_FUNCTIONS(ESPALIER_ZMQ_MEMBER)
#undef ESPALIER_ZMQ_MEMBER

    // Never unloaded.
    static Expected<ZmqLibrary> load();
};

}  // namespace espalier::server
