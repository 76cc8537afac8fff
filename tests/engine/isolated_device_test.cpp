// SPDX-License-Identifier: Apache-2.0
// The isolated device itself: what the host may not do dies, what operations may do works.
#include "lossless/isolated_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace espalier::lossless {
namespace {

class IsolatedDeviceTest : public testing::Test {
  protected:
    Buffer place(const std::vector<float>& values) {
        Buffer memory = device_.allocate(values.size() * sizeof(float)).value();
        EXPECT_TRUE(device_.upload(device_.stream(), memory.data(), values.data(),
                                   values.size() * sizeof(float)));
        return memory;
    }
    std::vector<float> read(const Buffer& memory, std::size_t count) {
        std::vector<float> values(count);
        EXPECT_TRUE(device_.download(device_.stream(), values.data(), memory.data(),
                                     count * sizeof(float)));
        return values;
    }

    IsolatedDevice device_{2};
};

using IsolatedDeviceDeathTest = IsolatedDeviceTest;

TEST_F(IsolatedDeviceDeathTest, AHostReadOrWriteIsACrash) {
    Buffer memory = place({1.0f, 2.0f});
    volatile float* numbers = memory.as<float>();
    EXPECT_DEATH(static_cast<void>(numbers[0]), "");
    EXPECT_DEATH(numbers[1] = 3.0f, "");
    {
        const IsolatedDevice::Access open(device_);
        EXPECT_EQ(numbers[1], 2.0f);
    }
    EXPECT_DEATH(static_cast<void>(numbers[0]), "");  // closed again
}

TEST_F(IsolatedDeviceTest, BytesComeBackThroughCopies) {
    const Buffer memory = place({1.0f, 2.0f, 3.0f});
    Buffer other = device_.allocate(12).value();
    EXPECT_EQ(read(other, 3), (std::vector<float>{0.0f, 0.0f, 0.0f}));
    ASSERT_TRUE(device_.copy(device_.stream(), other.data(), memory.data(), 12));
    ASSERT_TRUE(device_.fill(device_.stream(), other.data(), std::byte{0}, 4));
    EXPECT_EQ(read(other, 3), (std::vector<float>{0.0f, 2.0f, 3.0f}));
    EXPECT_FALSE(device_.allocate(std::size_t{1} << 50));
}

TEST_F(IsolatedDeviceTest, AReleasedBlockComesBackAsZeros) {
    const std::byte* first = nullptr;
    {
        const Buffer memory = place({1.0f, 2.0f});
        first = memory.data();
    }
    const Buffer again = device_.allocate(8).value();
    EXPECT_EQ(again.data(), first);
    EXPECT_EQ(read(again, 2), (std::vector<float>{0.0f, 0.0f}));
}

TEST_F(IsolatedDeviceTest, CopiesAndOperationsNameMemoryOfTheWrongSide) {
    Buffer memory = place({1.0f});
    float host = 0.0f;
    EXPECT_THROW(static_cast<void>(device_.upload(device_.stream(), &host, &host, 4)),
                 CheckFailure);
    EXPECT_THROW(
        static_cast<void>(device_.download(device_.stream(), memory.data(), memory.data(), 4)),
        CheckFailure);

    Arena arena{Buffer()};
    OpContext context{device_, arena};
    const auto backend = isolate(device_, ops::make_reference_backend());
    Buffer x = place({3.0f, 4.0f}), weight = place({1.0f, 2.0f});
    Buffer out = device_.allocate(8).value();
    const Matrix in = Matrix::of(x.as<float>(), 1, 2), y = Matrix::of(out.as<float>(), 1, 2);
    backend->rms_norm(context, in, weight.as<float>(), 0.0f, y, {});
    const float norm = 1.0f / std::sqrt(12.5f);
    EXPECT_FLOAT_EQ(read(out, 2)[0], 3.0f * norm);
    EXPECT_FLOAT_EQ(read(out, 2)[1], 8.0f * norm);
    const std::array<float, 2> on_the_host = {1.0f, 2.0f};
    EXPECT_THROW(backend->rms_norm(context, in, on_the_host.data(), 0.0f, y, {}), CheckFailure);
}

}  // namespace
}  // namespace espalier::lossless
