// SPDX-License-Identifier: Apache-2.0
// Where memory lives and operations run. Everything a model touches while it runs (weights, pages,
// activations, batches) is memory of one device; the host sees it only through upload() and
// download(). Errors of kind `io` mean that the device itself failed and nothing after can be
// trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/buffer.hpp"
#include "base/device_facts.hpp"
#include "base/error.hpp"

namespace espalier {

enum class DeviceKind : std::uint8_t { cpu, cuda };

// An order of work on a device. CUDA: a cudaStream_t. The CPU has one order, that of the calls.
using Stream = void*;

// Work that was recorded once and can be played again over changed memory: a CUDA graph; on the
// CPU simply the same calls.
class RecordedWork {
  public:
    virtual ~RecordedWork() = default;
    // In the order of the stream; does not wait.
    virtual Expected<void> queue() = 0;
    // Returns after the work is done.
    virtual Expected<void> play() = 0;
    // Seconds of the work alone.
    virtual Expected<double> timed_play() = 0;
    // Bytes of the device's memory that the recording itself takes, approximately.
    virtual std::size_t bytes() const = 0;
};

// Points in the order of a stream at which the device takes its own time.
class TimeMarks {
  public:
    virtual ~TimeMarks() = default;
    // Taken when the work before it is done; within recorded work, at each replay.
    virtual Expected<void> set(Stream stream, std::size_t mark) = 0;
    // From one mark to a later one, both taken and waited for.
    virtual Expected<double> seconds(std::size_t from, std::size_t to) const = 0;
};

// Bytes that come from the device to the host.
struct Transfer {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
};

class Device {
  public:
    using Work = std::function<Expected<void>()>;

    Device() = default;
    virtual ~Device() = default;  // after every buffer of it
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    virtual std::string_view name() const = 0;
    virtual DeviceKind kind() const = 0;
    // True if operations can read memory of the host in place: a mapped file, for one.
    virtual bool reads_host_memory() const = 0;
    // Number of workers that share an operation; scratch that each of them needs is sized by it.
    virtual int workers() const = 0;
    // The order in which work goes unless a caller has one of its own.
    virtual Stream stream() const = 0;
    // A GPU's; those of a CPU say nothing.
    virtual const DeviceFacts& facts() const {
        static const DeviceFacts none;
        return none;
    }

    // Zero-filled, 64-byte aligned. Nothing for 0 bytes.
    virtual Expected<Buffer> allocate(std::size_t bytes) = 0;
    // In the order of the stream; the source may be changed as soon as upload() returns.
    virtual Expected<void> upload(Stream stream, void* to, const void* from, std::size_t bytes) = 0;
    // Waits for the work before it in the stream, and for the bytes.
    virtual Expected<void> download(Stream stream, void* to, const void* from,
                                    std::size_t bytes) = 0;
    // Several downloads with one wait.
    virtual Expected<void> download_all(Stream stream, std::span<const Transfer> transfers) = 0;
    // Both run in the order of the stream; a copy stays on the device, its ranges apart.
    virtual Expected<void> fill(Stream stream, void* at, std::byte value, std::size_t bytes) = 0;
    virtual Expected<void> copy(Stream stream, void* to, const void* from, std::size_t bytes) = 0;
    virtual Expected<void> synchronize(Stream stream) = 0;

    // The work queues its operations on that stream. What it borrows outlives the recording.
    virtual Expected<std::unique_ptr<RecordedWork>> record(Stream stream, Work work) = 0;
    // Recorded work that sets some of them must not outlive them.
    virtual Expected<std::unique_ptr<TimeMarks>> time_marks(std::size_t count) = 0;
};

// The current GPU, with a stream of its own, as if it had no more than the limits; an error that
// says why where there is none.
Expected<std::unique_ptr<Device>> make_cuda_device(const DeviceLimits& limits = {});

}  // namespace espalier
