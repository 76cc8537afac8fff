// SPDX-License-Identifier: Apache-2.0
// Numbers of block formats against those of llama.cpp's own Python package
// (tools/make_block_goldens.py), bit for bit.
#include "base/block_format.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "support/paths.hpp"

namespace espalier {
namespace {

struct Record {
    std::string name;
    std::span<const std::byte> blocks;
    std::vector<float> numbers;
};

std::vector<Record> records(std::span<const std::byte> bytes) {
    const auto take = [&](std::size_t count) {
        const auto taken = bytes.first(count);
        bytes = bytes.subspan(count);
        return taken;
    };
    const auto number = [&] {
        std::uint32_t value = 0;
        std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
        return value;
    };
    std::vector<Record> all;
    while (!bytes.empty()) {
        Record record;
        const auto name = take(std::to_integer<std::size_t>(take(1)[0]));
        record.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
        const std::size_t blocks = number();
        record.numbers.resize(number());
        const auto size = static_cast<std::size_t>(facts_of(block_of(record.name)).bytes);
        EXPECT_GT(size, 0u) << record.name;
        if (size == 0) break;
        record.blocks = take(blocks * size);
        std::memcpy(record.numbers.data(), take(record.numbers.size() * 4).data(),
                    record.numbers.size() * 4);
        all.push_back(std::move(record));
    }
    return all;
}

TEST(BlockFormat, NumbersAreThoseOfTheReference) {
    const auto file =
        MappedFile::open(std::string(test::source_directory()) + "/tests/base/data/blocks.bin");
    ASSERT_TRUE(file) << file.error().message;
    const std::vector<Record> all = records(file->bytes());
    EXPECT_EQ(all.size(), kBlocks.size() - 1);
    for (const Record& record : all) {
        const BlockCode code = block_of(record.name);
        ASSERT_NE(code, BlockCode::none) << record.name;
        std::vector<float> numbers(record.numbers.size());
        widen_blocks(code, record.blocks.data(), std::ssize(numbers), numbers.data());
        for (std::size_t i = 0; i < numbers.size(); ++i)

            ASSERT_EQ(numbers[i], record.numbers[i]) << record.name << " weight " << i;
    }
}

}  // namespace
}  // namespace espalier
