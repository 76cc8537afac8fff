// SPDX-License-Identifier: Apache-2.0
#include "client/event_stream.hpp"

#include <gtest/gtest.h>

namespace espalier::client {
namespace {

using Events = std::vector<std::string>;

Events events_of(std::string_view bytes, std::size_t width) {
    EventStream stream;
    Events events;
    for (std::size_t at = 0; at < bytes.size(); at += width)
        EXPECT_FALSE(stream.push(bytes.substr(at, width), events));
    return events;
}

TEST(EventStream, CutsEventsWhereverTheBytesBreak) {
    const std::string_view bytes =
        ": ping\n\ndata: a\n\nid: 3\r\ndata:b\r\ndata:  c\r\n\r\ndatax: no\rdata\r\r"
        "data: {\"d\": 1}\n\ndata: not ended";
    const Events expected = {"a", "b\n c", "", "{\"d\": 1}"};
    for (std::size_t width = 1; width <= bytes.size(); ++width)
        EXPECT_EQ(events_of(bytes, width), expected) << width;
}

TEST(EventStream, RefusesALineAndAnEventWithoutEnd) {
    const std::string much(1 << 16, 'x');
    for (const std::string& again : {much, "data: " + much + "\n", std::string("data:\n")}) {
        EventStream stream;
        Events events;
        std::optional<Failure> failure;
        std::size_t bytes = 0;
        while (!failure && bytes < 16 * EventStream::kMaxEventBytes) {
            failure = stream.push(again, events);
            bytes += again.size();
        }
        ASSERT_TRUE(failure) << again.substr(0, 8);
        EXPECT_EQ(failure->kind, FailureKind::events);
        EXPECT_TRUE(events.empty());
    }
}

}  // namespace
}  // namespace espalier::client
