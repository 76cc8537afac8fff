// SPDX-License-Identifier: Apache-2.0
// A GPU's stream without a GPU: the CUDA backend's host code runs as it is, and in place of its
// kernels stand plain models that read what the kernels read, before their wait or behind it, and
// write what they write. They are kept and run later: one after another with all memory closed but
// what was declared, and in the worst order that a stream allows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/device_facts.hpp"
#include "base/stream_order.hpp"

namespace espalier::order_test {

// Blocks of whole pages, which can be closed one by one.
class Memory {
  public:
    Memory();
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::byte* take(std::int64_t bytes);
    void open_all();
    // Nothing but these can be touched, to the page.
    void open_only(const Ranges& reads, const Ranges& writes);
    std::vector<std::byte> bytes() const { return {base_, base_ + used_}; }
    void restore(const std::vector<std::byte>& bytes);

  private:
    void set(const MemoryRange& range, int rights);
    std::byte* base_ = nullptr;
    std::size_t used_ = 0;
};

// One launch, as a kernel's model has it.
struct Kernel {
    std::string name;
    std::function<void()> ahead{};  // before its wait
    std::function<void()> body{};   // behind it, or, of an early one, before
    bool early = false;
    Release release = Release::at_once;
    LaunchGrant grant{};
};

// The host code's launches, one by one.
class Recording final : public OrderWatch {
  public:
    struct Launch {
        LaunchNeeds needs;
        LaunchGrant grant;
    };

    Memory memory;
    DeviceFacts facts;
    std::vector<Launch> launches;
    std::vector<Kernel> kernels;
    std::function<void(LaunchNeeds&)> change{};  // inverts a declaration

    void declared(LaunchNeeds& needs) override {
        if (change) change(needs);
    }
    void granted(const LaunchNeeds& needs, const LaunchGrant& grant) override {
        launches.push_back({needs, grant});
    }
};

// Recording in which the doubles put their kernels' models; one at a time.
Recording& recording();
void record_into(Recording* recording);

inline void queue(Kernel kernel) { recording().kernels.push_back(std::move(kernel)); }

// "name [early] | …": what each launch was granted.
std::string grants_of(const Recording& recording);

// Runs what was recorded, one launch after another and in the worst order; empty: nothing to say.
// Undeclared touches end in a segmentation fault.
std::string verify(Recording& recording);

}  // namespace espalier::order_test
