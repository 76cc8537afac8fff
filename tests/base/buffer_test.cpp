// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.hpp"

#include <gtest/gtest.h>

#include "base/cpu_device.hpp"

namespace espalier {
namespace {

TEST(Buffer, IsZeroedAlignedAndMoves) {
    CpuDevice device(1);
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{4097}, (std::size_t{4} << 20) + 5}) {
        auto made = device.allocate(bytes);
        ASSERT_TRUE(made);
        EXPECT_GE(made->bytes(), bytes);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made->data()) % 64, 0u);
        EXPECT_EQ(made->data()[bytes - 1], std::byte{0});
        made->data()[bytes - 1] = std::byte{7};
        Buffer moved = std::move(*made);
        EXPECT_EQ(moved.data()[bytes - 1], std::byte{7});
    }
}

TEST(Buffer, RefusesTheImpossible) {
    CpuDevice device(1);
    EXPECT_FALSE(device.allocate(~std::size_t{0}));
    EXPECT_FALSE(device.allocate(std::size_t{1} << 50));
}

TEST(Arena, GivesBackAtAMarkAndRefusesTooMuch) {
    CpuDevice device(1);
    Arena arena(*device.allocate(4096));
    float* first = nullptr;
    {
        const Arena::Mark mark(arena);
        first = arena.take<float>(100);
        EXPECT_THROW(arena.take<float>(1000), CheckFailure);
    }
    EXPECT_EQ(arena.take<float>(100), first);
}

}  // namespace
}  // namespace espalier
