// SPDX-License-Identifier: Apache-2.0
// 2,000 streams at a time on Sapling: none is lost, none mixed up, and what they take is bounded.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "server/engine_texts.hpp"
#include "server/running_server.hpp"
#include "support/paths.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

constexpr int kStreams = 2000;

// Of this process, so far.
std::int64_t peak_kilobytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
    return 0;
}

// Its own prompt, seed and length.
Json stream_body(int number) {
    constexpr const char* kBeginnings[] = {"def ", "class ", "import ", "# ", "for "};
    const std::string beginning = kBeginnings[number % 5];
    return {{"prompt", beginning + "item_" + std::to_string(number)},
            {"seed", number},
            {"temperature", number % 4 == 0 ? 0.0 : 0.9},
            {"max_tokens", 8 + number % 9},
            {"stream", true}};
}

RunningServer::Setup sapling() {
    RunningServer::Setup setup;
    setup.model = std::string(espalier::test::source_directory()) + "/models/sapling";
    setup.threads = 2;
    setup.sizes = {.rows = 32, .max_waiting = kStreams};
    setup.server.idle_seconds = setup.server.write_seconds = 600;
    return setup;
}

TEST(ManyStreams, TwoThousandAtATimeEachGetTheirOwnText) {
    raise_file_limit();
    std::vector<std::vector<std::string>> texts(kStreams);
    {
        RunningServer server(sapling());
        const std::int64_t before = peak_kilobytes();
        std::vector<Client> clients;
        clients.reserve(kStreams);
        for (int i = 0; i < kStreams; ++i) clients.push_back(server.client());
        for (int i = 0; i < kStreams; ++i)
            ASSERT_TRUE(clients[static_cast<std::size_t>(i)].send(
                request_text("POST", "/v1/completions", stream_body(i).dump())));
        for (int i = 0; i < kStreams; ++i) {
            const Answer answer = clients[static_cast<std::size_t>(i)].receive();
            ASSERT_EQ(answer.status, 200) << i << answer.body;
            texts[static_cast<std::size_t>(i)] = texts_of(answer, 1);
        }
        const std::int64_t each = (peak_kilobytes() - before) / kStreams;
        std::printf("%lld KB for each stream\n", static_cast<long long>(each));
        EXPECT_LT(each, 128);  // server, engine and the test's own client together
        EXPECT_TRUE(server.becomes_idle());
    }
    // What `espalier generate` would write: one engine, no drafts.
    RunningServer::Setup plain = sapling();
    plain.speculate = {"off"};
    RunningServer alone(plain);
    std::vector<engine::Stream> expected;
    for (int i = 0; i < kStreams; ++i)
        expected.push_back(submit_body(*alone.runtime, stream_body(i)));
    for (int i = 0; i < kStreams; ++i)
        EXPECT_EQ(texts[static_cast<std::size_t>(i)],
                  texts_of(expected[static_cast<std::size_t>(i)]))
            << i;
}

}  // namespace
}  // namespace espalier::server::test
