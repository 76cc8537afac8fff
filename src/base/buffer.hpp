// SPDX-License-Identifier: Apache-2.0
// Move-only memory of a device (device.hpp): weights, pages, activations. On a device of its own it
// is an address that the host must not follow.
#pragma once

#include <cstddef>
#include <utility>

#include "base/check.hpp"

namespace espalier {

class Buffer {
  public:
    // owner: what the buffer was made with.
    using Release = void (*)(void* owner, void* block, std::size_t bytes);

    Buffer() = default;
    Buffer(void* data, std::size_t bytes, Release release, void* owner = nullptr)
        : data_(static_cast<std::byte*>(data)),
          bytes_(bytes),
          block_(data),
          block_bytes_(bytes),
          release_(release),
          owner_(owner) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        Buffer(std::move(other)).swap(*this);
        return *this;
    }
    ~Buffer() {
        if (release_ != nullptr) release_(owner_, block_, block_bytes_);
    }

    // The same memory, but data() and bytes() show only this part of it.
    Buffer narrowed(std::size_t first, std::size_t bytes) && {
        CHECK(first <= bytes_ && bytes <= bytes_ - first, "bytes {} + {} of a buffer of {}", first,
              bytes, bytes_);
        Buffer result(std::move(*this));
        result.data_ += first;
        result.bytes_ = bytes;
        return result;
    }

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
        std::swap(block_, other.block_);
        std::swap(block_bytes_, other.block_bytes_);
        std::swap(release_, other.release_);
        std::swap(owner_, other.owner_);
    }

    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    void* block_ = nullptr;  // what is released: data_ may lie further in
    std::size_t block_bytes_ = 0;
    Release release_ = nullptr;
    void* owner_ = nullptr;
};

}  // namespace espalier
