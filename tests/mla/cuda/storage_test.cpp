// SPDX-License-Identifier: Apache-2.0
// Append and compact on CUDA against storage.cpp, byte for byte: the whole pool is compared, so
// what must be left alone is seen too.
#include <limits>

#include "mla/cuda/device.hpp"

namespace espalier::mla::simple {
namespace {

class MlaCudaStorage : public CudaTest {
  protected:
    static constexpr std::int64_t kPages = 7;

    KvPages pages_of(KvFormat format, int page_tokens, std::vector<std::byte>& memory) {
        KvPages kv;
        kv.format = format;
        kv.page_tokens = page_tokens;
        kv.page_stride = page_stride_bytes(format, page_tokens) + 128;  // a gap nobody writes
        kv.page_count = kPages;
        kv.scale = 0.013f;
        memory.assign(static_cast<std::size_t>(kPages * kv.page_stride), std::byte{0x5a});
        kv.data = memory.data();
        return kv;
    }
};

// Numbers of every size, and all that no format holds.
std::vector<float> hostile_numbers(Random& random, std::int64_t count) {
    std::vector<float> values = normal(random, count, 3.0f);
    const float special[] = {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             3.4e38f,
                             -7e4f,
                             65504.0f,
                             1e-40f,
                             -1e-7f,
                             0.0f,
                             -0.0f,
                             5.9e-8f};
    for (float& value : values)
        if (random() % 17 == 0) value = special[random() % std::size(special)];
    return values;
}

TEST_F(MlaCudaStorage, AppendGivesTheBytesOfTheCpu) {
    Random random(1);
    for (const KvFormat format : kCudaFormats)
        for (const int page_tokens : {16, 64, 128}) {
            std::vector<std::byte> expected;
            const KvPages host = pages_of(format, page_tokens, expected);
            const std::int64_t slots = kPages * page_tokens;
            constexpr int kTokens = 61;
            constexpr std::int64_t kStride = kKey + 5;
            std::vector<float> rows = hostile_numbers(random, kTokens * kStride);
            std::fill_n(rows.begin(), kStride, 0.0f);              // nothing to scale by
            std::fill_n(rows.begin() + kStride, kStride, 1e-44f);  // a scale below the normal ones
            std::vector<std::int64_t> slot;
            for (int token = 0; token < kTokens; ++token)  // 31 is odd: all different
                slot.push_back(token * 31 % slots);
            slot[5] = -1;
            slot[6] = std::numeric_limits<std::int64_t>::min();
            slot[7] = slots;  // beyond the pool
            slot[8] = std::numeric_limits<std::int64_t>::max();

            OnDevice<std::byte> memory(expected);
            OnDevice<float> device_rows(rows);
            OnDevice<std::int64_t> device_slot(slot);
            OnDevice<std::uint8_t> flags(std::vector<std::uint8_t>(kTokens, 7));
            AppendCall call;
            call.tokens = kTokens;
            call.latent = device_rows.data();
            call.latent_stride = kStride;
            call.rope = device_rows.data() + kLatent;
            call.rope_stride = kStride;
            call.slot = device_slot.data();
            call.kv = host;
            call.kv.data = memory.data();
            call.nonfinite = flags.data();
            finish(kernels->append(context, call));

            std::vector<std::uint8_t> expected_flags(kTokens, 7);
            for (std::size_t token = 0; token < kTokens; ++token) {
                if (slot[token] < 0 || slot[token] >= slots) continue;
                const float* row = rows.data() + static_cast<std::int64_t>(token) * kStride;
                if (write_slot(host, slot[token], row, row + kLatent)) expected_flags[token] = 1;
            }
            EXPECT_EQ(memory.download(), expected) << name_of(format) << ", " << page_tokens;
            EXPECT_EQ(flags.download(), expected_flags) << name_of(format);
        }
}

TEST_F(MlaCudaStorage, CompactMovesInOrder) {
    Random random(2);
    // Rows whose paths overlap themselves; 0: as the contract has them, 1: a source that an earlier
    // move wrote and one destination twice, which still must go in order.
    for (const int kind : {0, 1})
        for (const KvFormat format : kCudaFormats)
            for (const int page_tokens : {16, 128}) {
                std::vector<std::byte> expected;
                const KvPages host = pages_of(format, page_tokens, expected);
                for (std::byte& byte : expected) byte = static_cast<std::byte>(random());
                const std::int64_t slots = kPages * page_tokens;
                std::vector<std::int64_t> source, destination;
                for (std::int64_t row = 0; row + 16 <= slots; row += 16) {
                    std::int64_t to = row;
                    for (std::int64_t from = row; from < row + 16; ++from)
                        if (random() % 2 == 0) {
                            source.push_back(from);
                            destination.push_back(to++);
                        }
                }
                if (kind == 1)
                    for (int i = 0; i < 9; ++i) {
                        source.push_back(destination[static_cast<std::size_t>(i)]);
                        destination.push_back(slots - 1 - i / 2);
                    }
                source.push_back(slots);  // outside: skipped
                destination.push_back(0);
                source.push_back(1);
                destination.push_back(-1);
                OnDevice<std::byte> memory(expected);
                OnDevice<std::int64_t> from(source);
                OnDevice<std::int64_t> to(destination);
                CompactCall call{static_cast<std::int64_t>(source.size()), from.data(), to.data(),
                                 host};
                call.kv.data = memory.data();
                finish(kernels->compact(context, call));
                for (std::size_t i = 0; i < source.size(); ++i)
                    if (source[i] < slots && destination[i] >= 0)
                        move_slot(host, source[i], destination[i]);
                EXPECT_EQ(memory.download(), expected)
                    << name_of(format) << ", " << page_tokens << ", kind " << kind;
            }
}

TEST_F(MlaCudaStorage, F32CachesAreRefusedByName) {
    std::vector<std::byte> memory;
    const KvPages kv = pages_of(KvFormat::f32, 16, memory);
    const Expected<void> done = kernels->compact(context, {0, nullptr, nullptr, kv});
    ASSERT_FALSE(done);
    EXPECT_NE(done.error().message.find("f32 cache on CUDA"), std::string::npos);
}

}  // namespace
}  // namespace espalier::mla::simple
