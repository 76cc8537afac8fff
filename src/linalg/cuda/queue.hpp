// SPDX-License-Identifier: Apache-2.0
// Where a product is queued: a stream, and the order of the launches on it.
#pragma once

#include <optional>

#include "base/op_context.hpp"

namespace espalier::linalg::cuda {

class Queue {
  public:
    // Implicit: operations hand their context on.
    Queue(OpContext& context) : stream_(context.stream), order_(&context.order) {}
    // Nothing is known of the stream.
    Queue(Stream stream) : stream_(stream), own_(StreamOrder()), order_(&*own_) {}
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    Stream stream() const { return stream_; }
    StreamOrder& order() const { return *order_; }

  private:
    Stream stream_;
    std::optional<StreamOrder> own_;
    StreamOrder* order_;
};

// Wishes of a product to run beside its neighbours in the order, if that allows it.
struct Wishes {
    bool early = false;   // to run beside the launch in front, whose results it does not read
    Ranges holds_back{};  // what an operation behind reads early (LaunchNeeds)
};

}  // namespace espalier::linalg::cuda
