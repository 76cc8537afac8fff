// SPDX-License-Identifier: Apache-2.0
// The writer never holds up who writes: with a disk that hangs, the trace ends and says so.
#include "trace/writer.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "trace/samples.hpp"

namespace espalier::trace {
namespace {

// A disk that hangs after the header until it is let go.
class HangingSink final : public Sink {
  public:
    struct Shared {
        std::mutex mutex;
        std::condition_variable changed;
        bool hangs = true;
        int writes = 0;
        std::string text;
    };
    explicit HangingSink(Shared& shared) : shared_(shared) {}
    Expected<void> write(std::string_view bytes) override {
        std::unique_lock lock(shared_.mutex);
        ++shared_.writes;
        shared_.changed.notify_all();
        if (shared_.writes > 1) shared_.changed.wait(lock, [this] { return !shared_.hangs; });
        shared_.text += bytes;
        return {};
    }

  private:
    Shared& shared_;
};

class FullSink final : public Sink {
  public:
    explicit FullSink(int room) : room_(room) {}
    Expected<void> write(std::string_view) override {
        if (room_-- > 0) return {};
        return fail(ErrorKind::io, "run.jsonl: cannot be written: No space left on device");
    }

  private:
    int room_;
};

Step step_number(std::int64_t number) {
    Step step = sample_step();
    step.number = number;
    return step;
}

TEST(TraceWriter, ASlowDiskEndsTheTraceAndHoldsUpNobody) {
    HangingSink::Shared disk;
    auto made = Writer::create(std::make_unique<HangingSink>(disk), sample_header(), {8, 1000});
    ASSERT_TRUE(made);
    Writer& writer = **made;
    EXPECT_TRUE(writer.write(step_number(1)));
    {  // The thread hangs with step 1; the queue is empty.
        std::unique_lock lock(disk.mutex);
        disk.changed.wait(lock, [&] { return disk.writes == 2; });
    }
    for (int number = 2; number <= 9; ++number) EXPECT_TRUE(writer.write(step_number(number)));
    EXPECT_FALSE(writer.write(step_number(10)));
    EXPECT_FALSE(writer.write(step_number(11)));  // even if there should be room again
    EXPECT_EQ(writer.status().lost, 2);
    EXPECT_EQ(writer.status().failure, "the disk is slower than the engine");
    {
        const std::lock_guard lock(disk.mutex);
        disk.hangs = false;
        disk.changed.notify_all();
    }
    const auto end = writer.finish();
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_EQ(*end, (End{Close::overflow, 0, 0, 9}));
    auto reader = read_text(disk.text);
    ASSERT_TRUE(reader) << reader.error().message;
    for (int number = 1; number <= 9; ++number)
        EXPECT_EQ(std::get<Step>(**reader->next()).number, number);
    EXPECT_FALSE(*reader->next());
    EXPECT_EQ(reader->ending(), Ending::overflow);
}

TEST(TraceWriter, LongPromptsCountByTheirLength) {
    HangingSink::Shared disk;
    auto made = Writer::create(std::make_unique<HangingSink>(disk), sample_header(), {100, 1000});
    ASSERT_TRUE(made);
    Submission submission = sample_submission();
    submission.prompt.assign(5000, 1);
    EXPECT_TRUE((*made)->write(submission));  // alone it is taken whatever its size
    {
        std::unique_lock lock(disk.mutex);
        disk.changed.wait(lock, [&] { return disk.writes == 2; });
    }
    EXPECT_TRUE((*made)->write(submission));
    EXPECT_FALSE((*made)->write(submission));
    const std::lock_guard lock(disk.mutex);
    disk.hangs = false;
    disk.changed.notify_all();
}

TEST(TraceWriter, AFullDiskIsReportedAtTheEnd) {
    EXPECT_FALSE(Writer::create(std::make_unique<FullSink>(0), sample_header()));
    auto made = Writer::create(std::make_unique<FullSink>(1), sample_header());
    ASSERT_TRUE(made);
    EXPECT_TRUE((*made)->status().failure.empty());
    for (int number = 1; number <= 100; ++number) (*made)->write(step_number(number));
    // It is known when it happens, not only at the end.
    while ((*made)->status().lost < 100) std::this_thread::yield();
    EXPECT_NE((*made)->status().failure.find("No space left"), std::string::npos);
    const auto end = (*made)->finish();
    ASSERT_FALSE(end);
    EXPECT_EQ((*made)->status().lost, 100);
    EXPECT_NE(end.error().message.find("No space left"), std::string::npos);
    EXPECT_FALSE((*made)->finish());  // again
}

TEST(TraceWriter, WrittenStepsComeBackWithTheirMemory) {
    std::string text;
    auto made = Writer::create(std::make_unique<StringSink>(text), sample_header());
    ASSERT_TRUE(made);
    Step spare;
    for (int tries = 0; tries < 100000 && spare.rows.capacity() == 0; ++tries) {
        (*made)->write(step_number(tries));
        spare = (*made)->spare_step();
        std::this_thread::yield();
    }
    EXPECT_GT(spare.rows.capacity(), 0u);
}

}  // namespace
}  // namespace espalier::trace
