// SPDX-License-Identifier: Apache-2.0
#include "base/stream_order.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace espalier {
namespace {

std::byte memory[1024];

MemoryRange part(int begin, int end, Slots slots = Slots::all) {
    return {memory + begin, memory + end, slots};
}
LaunchNeeds writes(const MemoryRange& range, Release release = Release::at_once) {
    return {.name = "writes", .writes = {range}, .release = release};
}
LaunchNeeds reads_early(const MemoryRange& range) {
    return {.name = "reads", .reads = {range}, .early = true};
}

// After launches that all wait and hold nothing.
StreamOrder settled() {
    StreamOrder order;
    order.settle();
    return order;
}

TEST(StreamOrder, KnowsNothingAtFirst) {
    StreamOrder order;
    EXPECT_FALSE(order.launch(reads_early(part(0, 8))).early);
    order.settle();
    EXPECT_TRUE(order.launch(reads_early(part(0, 8))).early);
    order.forget();
    EXPECT_FALSE(order.launch(reads_early(part(0, 8))).early);
}

TEST(StreamOrder, LaunchesThatMayStillRunAreThoseBehindTheLastThatWaitedFirst) {
    StreamOrder order = settled();
    order.launch(writes(part(0, 8)));
    order.launch(writes(part(8, 16)));
    EXPECT_FALSE(order.launch(reads_early(part(0, 8))).early);
    order = settled();
    order.launch(writes(part(0, 8)));
    order.launch(writes(part(8, 16), Release::behind_wait));
    EXPECT_TRUE(order.launch(reads_early(part(0, 8))).early);
    EXPECT_FALSE(order.launch(reads_early(part(8, 16))).early);
}

TEST(StreamOrder, NothingIsWrittenEarlyThatAnotherReadsOrWrites) {
    LaunchNeeds needs{.name = "writes early", .writes = {part(0, 8)}, .early = true};
    StreamOrder order = settled();
    order.launch({.name = "reads", .reads = {part(4, 12)}});
    EXPECT_FALSE(order.launch(needs).early);
    order = settled();
    order.launch(writes(part(7, 9)));
    EXPECT_FALSE(order.launch(needs).early);
    order = settled();
    order.launch({.name = "reads", .reads = {part(8, 12)}});
    EXPECT_TRUE(order.launch(needs).early);
}

// A launch holds the next one back if that makes ranges ready, and for nothing else.
TEST(StreamOrder, HoldsBackWhatIsStillWritten) {
    const LaunchNeeds holds{.name = "holds", .holds_back = {part(0, 8)}};
    StreamOrder order = settled();
    EXPECT_FALSE(order.launch(holds).holds_next);
    order.launch(writes(part(0, 8)));
    EXPECT_TRUE(order.launch(holds).holds_next);
    EXPECT_FALSE(order.launch(holds).holds_next);
    EXPECT_TRUE(order.launch(reads_early(part(0, 8))).early);
    order.forget();
    EXPECT_TRUE(order.launch(holds).holds_next);
}

// An early launch waits at its own end for what it did not wait for at its beginning: launches in
// front of it may run beside the one behind it.
TEST(StreamOrder, GrantsSayWhenTheNextStarts) {
    const LaunchNeeds experts{
        .name = "experts", .reads = {part(0, 8)}, .early = true, .release = Release::behind_wait};
    StreamOrder order = settled();
    order.launch(writes(part(16, 24)));
    EXPECT_TRUE(order.launch(experts).early);
    EXPECT_FALSE(order.launch(reads_early(part(16, 24))).early);
    order = settled();
    order.launch(writes(part(0, 8)));
    EXPECT_FALSE(order.launch(experts).early);
    EXPECT_TRUE(order.launch(reads_early(part(0, 8))).early);
}

TEST(StreamOrder, AppendedSlotsAreNoHistory) {
    LaunchNeeds attention{.name = "attention", .ahead = {part(0, 64, Slots::history)}};
    StreamOrder order = settled();
    order.launch(writes(part(0, 64, Slots::appended)));
    EXPECT_TRUE(order.launch(attention).ahead);
    order.launch(writes(part(0, 64)));
    EXPECT_FALSE(order.launch(attention).ahead);
}

// The log is short: what no longer fits counts as unknown.
TEST(StreamOrder, ForgetsWhatDoesNotFit) {
    StreamOrder order = settled();
    for (int i = 0; i < 100; ++i) order.launch(writes(part(8, 16)));
    EXPECT_FALSE(order.launch(reads_early(part(0, 8))).early);
}

TEST(StreamOrder, RangesOfMatricesReachFromTheFirstElementToTheLast) {
    const Matrix m{memory, DType::bf16, 3, 4, 10};
    EXPECT_EQ(range_of(m), part(0, 48));
    EXPECT_TRUE(range_of(m.slice(0, 0)).empty());
    EXPECT_TRUE(range_of(static_cast<const float*>(nullptr), 8).empty());
    EXPECT_EQ(range_of(memory, 8), part(0, 8));
    EXPECT_EQ((Ranges{part(0, 0), part(0, 8)}).size(), 1u);
}

}  // namespace
}  // namespace espalier
