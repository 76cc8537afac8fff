// SPDX-License-Identifier: Apache-2.0
// Move-only memory: what a backend allocates for weights, pages and activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.hpp"

namespace espalier {

class Buffer {
  public:
    using Release = void (*)(void* data, std::size_t bytes);

    Buffer() = default;
    Buffer(void* data, std::size_t bytes, Release release)
        : data_(static_cast<std::byte*>(data)), bytes_(bytes), release_(release) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        Buffer(std::move(other)).swap(*this);
        return *this;
    }
    ~Buffer() {
        if (release_ != nullptr) release_(data_, bytes_);
    }

    // Zero-filled, 64-byte aligned; from 2 MiB up on huge pages where the system has them
    // (they take the TLB out of weight streaming). Untouched parts cost no memory.
    static Expected<Buffer> host(std::size_t bytes);

    std::byte* data() { return data_; }
    const std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    template <typename T>
    T* as() {
        return reinterpret_cast<T*>(data_);
    }
    template <typename T>
    const T* as() const {
        return reinterpret_cast<const T*>(data_);
    }

  private:
    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(release_, other.release_);
    }

    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    Release release_ = nullptr;
};

}  // namespace espalier
