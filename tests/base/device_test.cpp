// SPDX-License-Identifier: Apache-2.0
#include "base/device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "base/cpu_device.hpp"

namespace espalier {
namespace {

// A device that is none: what a CPU operation must refuse.
class NoDevice final : public Device {
  public:
    std::string_view name() const override { return "nowhere"; }
    DeviceKind kind() const override { return DeviceKind::cuda; }
    bool reads_host_memory() const override { return false; }
    int workers() const override { return 1; }
    Stream stream() const override { return nullptr; }
    Expected<Buffer> allocate(std::size_t) override { return Buffer(); }
    Expected<void> upload(Stream, void*, const void*, std::size_t) override { return {}; }
    Expected<void> download(Stream, void*, const void*, std::size_t) override { return {}; }
    Expected<void> download_all(Stream, std::span<const Transfer>) override { return {}; }
    Expected<void> fill(Stream, void*, std::byte, std::size_t) override { return {}; }
    Expected<void> copy(Stream, void*, const void*, std::size_t) override { return {}; }
    Expected<void> synchronize(Stream) override { return {}; }
    Expected<std::unique_ptr<RecordedWork>> record(Stream, Work) override {
        return fail(ErrorKind::unsupported, "nothing to record");
    }
    Expected<std::unique_ptr<TimeMarks>> time_marks(std::size_t) override {
        return fail(ErrorKind::unsupported, "no clock");
    }
};

TEST(CpuDevice, MovesBytesBothWaysAndOnTheDevice) {
    CpuDevice device(2);
    EXPECT_EQ(device.workers(), 2);
    Buffer memory = device.allocate(64).value();
    const std::vector<int> sent = {1, 2, 3, 4};
    ASSERT_TRUE(device.upload(device.stream(), memory.data(), sent.data(), 16));
    ASSERT_TRUE(device.copy(device.stream(), memory.data() + 16, memory.data(), 16));
    ASSERT_TRUE(device.fill(device.stream(), memory.data(), std::byte{0xff}, 8));
    std::array<int, 8> got{};
    ASSERT_TRUE(device.download(device.stream(), got.data(), memory.data(), 32));
    EXPECT_EQ(got, (std::array<int, 8>{-1, -1, 3, 4, 1, 2, 3, 4}));
    std::array<int, 2> first{}, last{};
    const std::array<Transfer, 2> both = {
        {{first.data(), memory.data(), 8}, {last.data(), memory.data() + 24, 8}}};
    ASSERT_TRUE(device.download_all(device.stream(), both));
    EXPECT_EQ(first, (std::array<int, 2>{-1, -1}));
    EXPECT_EQ(last, (std::array<int, 2>{3, 4}));
}

TEST(CpuDevice, PlaysRecordedWorkOverChangedMemory) {
    CpuDevice device(1);
    Buffer memory = device.allocate(8).value();
    auto recorded = device.record(device.stream(), [&]() -> Expected<void> {
        *memory.as<int>() += 5;
        return {};
    });
    ASSERT_TRUE(recorded);
    const int before = *memory.as<int>();
    ASSERT_TRUE((*recorded)->play());
    ASSERT_GE((*recorded)->timed_play().value(), 0.0);
    ASSERT_TRUE((*recorded)->queue());
    EXPECT_EQ(*memory.as<int>(), before + 15);
    EXPECT_EQ((*recorded)->bytes(), 0u);
}

TEST(CpuDevice, TakesTheTimeAtEveryReplay) {
    CpuDevice device(1);
    const auto marks = device.time_marks(3).value();
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
    const auto recorded = device
                              .record(device.stream(),
                                      [&]() -> Expected<void> {
                                          ESPALIER_RETURN_IF_ERROR(marks->set(nullptr, 1));
                                          pause();
                                          return marks->set(nullptr, 2);
                                      })
                              .value();
    ASSERT_TRUE(marks->set(device.stream(), 0));
    ASSERT_TRUE(recorded->play());
    const double first = marks->seconds(0, 2).value();
    EXPECT_GE(marks->seconds(1, 2).value(), 0.002);
    EXPECT_LE(marks->seconds(1, 2).value(), first);
    pause();
    ASSERT_TRUE(recorded->play());
    EXPECT_GE(marks->seconds(0, 2).value(), first + 0.004);
}

TEST(CpuDevice, LendsItsPoolToCpuOperationsOnly) {
    CpuDevice device(3);
    Arena arena{Buffer()};
    OpContext context{device, arena};
    EXPECT_EQ(&pool_of(context), &device.pool());
    NoDevice elsewhere;
    OpContext foreign{elsewhere, arena};
    EXPECT_THROW(pool_of(foreign), CheckFailure);
}

TEST(Buffer, ShowsAPartAndReleasesTheWhole) {
    std::size_t released = 0;
    std::array<std::byte, 96> block{};
    const auto release = [](void* owner, void*, std::size_t bytes) {
        *static_cast<std::size_t*>(owner) = bytes;
    };
    {
        Buffer whole(block.data(), block.size(), release, &released);
        const Buffer part = std::move(whole).narrowed(32, 16);
        EXPECT_EQ(part.data(), block.data() + 32);
        EXPECT_EQ(part.bytes(), 16u);
        EXPECT_EQ(released, 0u);
    }
    EXPECT_EQ(released, 96u);
    EXPECT_THROW(Buffer(block.data(), 96, nullptr).narrowed(90, 7), CheckFailure);
}

TEST(CudaDevice, IsThereOrSaysWhyNot) {
    const auto device = make_cuda_device();
    if (device) {
        EXPECT_EQ((*device)->kind(), DeviceKind::cuda);
        return;
    }
    EXPECT_NE(device.error().message.find("CUDA"), std::string::npos) << device.error().message;
}

}  // namespace
}  // namespace espalier
