// SPDX-License-Identifier: Apache-2.0
// What every operation gets besides its data: where to run, scratch memory to run in, and the order
// of its launches on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.hpp"
#include "base/check.hpp"
#include "base/device.hpp"
#include "base/stream_order.hpp"

namespace espalier {

namespace parallel {
class Ranks;
}

// Scratch memory, planned at start and handed out by bumping a pointer; a Mark gives it back in one
// go.
class Arena {
  public:
    explicit Arena(Buffer memory) : memory_(std::move(memory)) {}

    template <typename T>
    T* take(std::int64_t count) {
        const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
        CHECK(count >= 0 && bytes <= memory_.bytes() - used_,
              "arena of {} bytes: {} used, {} more wanted", memory_.bytes(), used_, bytes);
        T* result = reinterpret_cast<T*>(memory_.data() + used_);
        used_ += bytes;
        return result;
    }

    Buffer& memory() { return memory_; }

    class Mark {
      public:
        explicit Mark(Arena& arena) : arena_(arena), used_(arena.used_) {}
        ~Mark() { arena_.used_ = used_; }
        Mark(const Mark&) = delete;
        Mark& operator=(const Mark&) = delete;

      private:
        Arena& arena_;
        std::size_t used_;
    };

  private:
    Buffer memory_;
    std::size_t used_ = 0;
};

struct OpContext {
    Device& device;
    Arena& arena;  // scratch that lives no longer than the operation, in the device's memory
    Stream stream = device.stream();
    StreamOrder order{};               // of the launches that this context makes
    parallel::Ranks* ranks = nullptr;  // that hold parts of the model; null: this one has it whole

    // Returns after all work of the stream.
    Expected<void> synchronize() {
        Expected<void> done = device.synchronize(stream);
        if (done) order.settle();
        return done;
    }
};

}  // namespace espalier
