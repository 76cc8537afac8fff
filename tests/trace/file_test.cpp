// SPDX-License-Identifier: Apache-2.0
// Files of lines: how they are read, how they may end, and that no bytes bring the reader down.
#include <gtest/gtest.h>

#include "support/temporary_directory.hpp"
#include "trace/samples.hpp"
#include "trace/writer.hpp"

namespace espalier::trace {
namespace {

std::vector<Event> with_end(std::vector<Event> events, End end) {
    events.push_back(end);
    return events;
}

TEST(TraceFile, IsReadEventByEvent) {
    const std::vector<Event> events = sample_events();
    const std::string text = file_of(sample_header(), with_end(events, {Close::finished, 2, 1, 2}));
    auto reader = read_text(text);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->header(), sample_header());
    for (const Event& event : events) {
        const auto next = reader->next();
        ASSERT_TRUE(next) << next.error().message;
        ASSERT_TRUE(*next);
        EXPECT_TRUE(**next == event);
    }
    EXPECT_EQ(reader->place(), "run.jsonl, line 6");
    EXPECT_FALSE(*reader->next());
    EXPECT_EQ(reader->ending(), Ending::finished);
    EXPECT_FALSE(*reader->next());
}

Ending ending_of(const std::string& text) {
    auto reader = read_text(text);
    EXPECT_TRUE(reader) << reader.error().message;
    for (;;) {
        const auto next = reader->next();
        EXPECT_TRUE(next) << next.error().message;
        if (!next || !*next) return reader->ending();
    }
}

TEST(TraceFile, TellsHowItCameToItsEnd) {
    const std::vector<Event> events = sample_events();
    const std::string open = file_of(sample_header(), events);
    EXPECT_EQ(ending_of(open), Ending::missing);
    EXPECT_EQ(ending_of(file_of(sample_header(), with_end(events, {Close::overflow, 2, 1, 2}))),
              Ending::overflow);
    // A writer that was killed leaves half a line: what came before it counts.
    const auto half = events_of(open.substr(0, open.size() - 30));
    ASSERT_TRUE(half) << half.error().message;
    EXPECT_EQ(half->size(), events.size() - 1);
    // A whole line without its newline is whole.
    EXPECT_EQ(events_of(open.substr(0, open.size() - 1))->size(), events.size());
}

std::string error_of(const std::string& text) {
    const auto events = events_of(text);
    return events ? "" : events.error().message;
}

TEST(TraceFile, ErrorsNameTheLine) {
    const std::string text =
        file_of(sample_header(), with_end(sample_events(), {Close::finished, 2, 1, 2}));
    std::vector<std::string> lines = lines_of(text);
    EXPECT_EQ(error_of(""), "run.jsonl: the trace is empty");
    EXPECT_NE(error_of("\n").find("run.jsonl, line 1: "), std::string::npos);
    lines[3] = "{}";
    EXPECT_EQ(error_of(joined(lines)), "run.jsonl, line 4: 'kind' is missing, or not a text");
    lines.erase(lines.begin() + 3);
    EXPECT_EQ(error_of(joined(lines)),
              "run.jsonl, line 6: the end line counts 2 submissions, but 1 lines have one");
    EXPECT_EQ(error_of(text + "\n"), "run.jsonl, line 8: a line after the trace's end");
    lines = lines_of(text);
    std::swap(lines[0], lines[1]);
    EXPECT_EQ(error_of(joined(lines)),
              "run.jsonl, line 1: a trace begins with its header, not with 'submit'");
    EXPECT_EQ(error_of(lines_of(text)[0] + "\n" + std::string(kMaxLineBytes + 1, ' ') + "\n"),
              "run.jsonl, line 2: longer than 33554432 bytes");
    EXPECT_FALSE(Reader::open("/no/such/file"));
}

// 20,000 changed files: read to the end or refused with a line's number, nothing else.
TEST(TraceFile, ChangedFilesAreReadOrRefused) {
    const std::string text =
        file_of(sample_header(), with_end(sample_events(), {Close::finished, 2, 1, 2}));
    Random random(5);
    int refused = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string changed = mutated(text, random);
        while (random.chance(0.3)) changed = mutated(changed, random);
        const std::string error = error_of(changed);
        refused += error.empty() ? 0 : 1;
        ASSERT_TRUE(error.empty() || error.find("run.jsonl") == 0) << error << "\n" << changed;
    }
    EXPECT_GT(refused, 10000);
    EXPECT_LT(refused, 19000);
}

TEST(TraceFile, AFileOnDiskIsWrittenAndReadBack) {
    const TemporaryDirectory directory;
    const std::string path = (directory.path() / "run.jsonl").string();
    auto sink = open_file(path);
    ASSERT_TRUE(sink) << sink.error().message;
    auto writer = Writer::create(std::move(*sink), sample_header());
    ASSERT_TRUE(writer) << writer.error().message;
    for (const Event& event : sample_events()) EXPECT_TRUE((*writer)->write(event));
    const auto end = (*writer)->finish();
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_EQ(*end, (End{Close::finished, 2, 1, 2}));
    auto reader = Reader::open(path);
    ASSERT_TRUE(reader) << reader.error().message;
    std::size_t count = 0;
    while (*reader->next()) ++count;
    EXPECT_EQ(count, sample_events().size());
    EXPECT_EQ(reader->ending(), Ending::finished);
    EXPECT_FALSE(open_file("/no/such/folder/run.jsonl"));
}

}  // namespace
}  // namespace espalier::trace
