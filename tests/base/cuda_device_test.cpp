// SPDX-License-Identifier: Apache-2.0
// Uploads of any length leave the bytes that the source had when upload() was called, whatever
// becomes of it afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/cuda/device_facts.hpp"
#include "base/device.hpp"
#include "base/random.hpp"

namespace espalier {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, Random& random) {
    std::vector<std::byte> bytes(count);
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random.between(0, 255)); });
    return bytes;
}

// Two devices in one process, one of which is to look smaller than it is.
TEST(CudaDevice, FactsBelongToADeviceAndItsStream) {
    const auto whole = make_cuda_device().value();
    const DeviceFacts all = whole->facts();
    EXPECT_GT(all.multiprocessors, 8);
    EXPECT_GE(all.processor_shared_bytes, all.block_shared_bytes);
    {
        const auto part =
            make_cuda_device({.multiprocessors = 8, .block_shared_bytes = 99 * 1024}).value();
        EXPECT_EQ(part->facts().multiprocessors, 8);
        EXPECT_EQ(part->facts().block_shared_bytes, 99u * 1024);
        EXPECT_EQ(facts_of(part->stream()), part->facts());
        EXPECT_EQ(facts_of(whole->stream()), all);
    }
    EXPECT_EQ(whole->facts(), all);
    EXPECT_EQ(facts_of(whole->stream()), all);
}

TEST(CudaDevice, UploadsShortAndLongMemoryThatChangesRightAfter) {
    const auto device = make_cuda_device().value();
    Random random(7);
    constexpr std::size_t kLongest = std::size_t{40} << 20;
    const std::vector<std::byte> bytes = random_bytes(kLongest + 64, random);
    Buffer memory = device->allocate(kLongest + 64).value();
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{4097}, (std::size_t{1} << 20) - 1, std::size_t{1} << 20,
          (std::size_t{1} << 20) + 1, (std::size_t{5} << 20) + 12345, kLongest}) {
        const auto from = static_cast<std::size_t>(random.between(0, 63));
        const auto to = static_cast<std::size_t>(random.between(0, 63));
        ASSERT_TRUE(device->fill(device->stream(), memory.data(), std::byte{0xEE}, count + 64));
        std::vector<std::byte> source(bytes);
        ASSERT_TRUE(
            device->upload(device->stream(), memory.data() + to, source.data() + from, count));
        std::ranges::fill(source, std::byte{0});
        std::vector<std::byte> got(count + 64);
        ASSERT_TRUE(device->download(device->stream(), got.data(), memory.data(), got.size()));
        std::vector<std::byte> expected(count + 64, std::byte{0xEE});
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(from), count,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        EXPECT_EQ(got, expected) << count << " bytes";
    }
}

// Many uploads through the same page-locked memory, with work of the stream between them.
TEST(CudaDevice, UploadsOneAfterAnotherInTheOrderOfTheStream) {
    const auto device = make_cuda_device().value();
    Random random(8);
    constexpr std::size_t kBytes = (std::size_t{3} << 20) + 1000;
    constexpr int kUploads = 24;
    Buffer rows = device->allocate(kBytes).value();
    Buffer all = device->allocate(kUploads * kBytes).value();
    std::vector<std::byte> expected;
    for (int i = 0; i < kUploads; ++i) {
        std::vector<std::byte> source = random_bytes(kBytes, random);
        expected.insert(expected.end(), source.begin(), source.end());
        ASSERT_TRUE(device->upload(device->stream(), rows.data(), source.data(), kBytes));
        ASSERT_TRUE(device->copy(device->stream(), all.data() + i * kBytes, rows.data(), kBytes));
    }
    std::vector<std::byte> got(expected.size());
    ASSERT_TRUE(device->download(device->stream(), got.data(), all.data(), got.size()));
    EXPECT_TRUE(got == expected);
}

// The marks around 64 MiB and four times as much that are filled, by themselves and in a recording,
// whose replays take them anew.
TEST(CudaDevice, TakesTheTimeOfEachPartOfARecording) {
    const auto device = make_cuda_device().value();
    const Stream stream = device->stream();
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    Buffer memory = device->allocate(4 * kBytes).value();
    const auto marks = device->time_marks(3).value();
    const auto work = [&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(marks->set(stream, 0));
        ESPALIER_RETURN_IF_ERROR(device->fill(stream, memory.data(), std::byte{1}, kBytes));
        ESPALIER_RETURN_IF_ERROR(marks->set(stream, 1));
        ESPALIER_RETURN_IF_ERROR(device->fill(stream, memory.data(), std::byte{2}, 4 * kBytes));
        return marks->set(stream, 2);
    };
    const auto check = [&] {
        const double shorter = marks->seconds(0, 1).value(), longer = marks->seconds(1, 2).value();
        EXPECT_GT(shorter, 5e-6);
        EXPECT_GT(longer, 2 * shorter);
        EXPECT_LT(longer, 8 * shorter);
        return shorter + longer;
    };
    ASSERT_TRUE(work());
    ASSERT_TRUE(device->synchronize(stream));
    check();
    const auto recording = device->record(stream, work).value();
    for (int replay = 0; replay < 3; ++replay) {
        const double whole = recording->timed_play().value();
        EXPECT_LE(check(), whole + 1e-6);
    }
}

}  // namespace
}  // namespace espalier
