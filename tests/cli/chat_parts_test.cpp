// SPDX-License-Identifier: Apache-2.0
// What a chat is made of: text that is safe to show, the closing line, the history, the turns.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/random.hpp"
#include "cli/chat_history.hpp"
#include "cli/chat_session.hpp"
#include "cli/safe_text.hpp"
#include "support/stand_in_server.hpp"
#include "support/temporary_directory.hpp"
#include "text/utf8.hpp"

namespace espalier::cli {
namespace {

using test::http_answer;
using test::http_chunked;
using test::ScriptedAnswer;
using test::StandInServer;
using Json = nlohmann::json;

TEST(Printable, ShowsControlCharactersInsteadOfSendingThem) {
    EXPECT_EQ(printable("plain\n\ttext – 漢字 🌳"), "plain\n\ttext – 漢字 🌳");
    EXPECT_EQ(printable("\x1b[2J\x1b]0;title\x07"), "␛[2J␛]0;title␇");
    EXPECT_EQ(printable("a\rb\x08\x7f"), "a␍b␈␡");
    EXPECT_EQ(printable(std::string(1, '\0')), "␀");
    EXPECT_EQ(printable("\xc2\x9b"
                        "31m"),
              "\xef\xbf\xbd"
              "31m");  // CSI as one character
    EXPECT_EQ(printable("\xe2\x80\xae"
                        "evil"),
              "\xef\xbf\xbd"
              "evil");                                                             // right to left
    EXPECT_EQ(printable("\xff\xc0\x9b"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // no UTF-8
    EXPECT_EQ(safe_file_name("../a b/ç"), ".._a_b___");
}

TEST(Printable, NothingThatATerminalObeysComesThrough) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        Random random(seed);
        std::string text;
        for (int i = 0; i < 64; ++i) text += static_cast<char>(random.bits() % 256);
        const std::string shown = printable(text);
        ASSERT_EQ(text::valid_utf8_prefix(shown), shown.size());
        for (std::size_t at = 0; at < shown.size();
             at += text::utf8_length(static_cast<unsigned char>(shown[at]))) {
            const std::uint32_t point = text::code_point_at(shown, at);
            ASSERT_TRUE(point == '\n' || point == '\t' || (point >= 0x20 && point < 0x7f) ||
                        point >= 0xa0);
        }
    }
}

TEST(ClosingLine, SaysWhatIsKnown) {
    ChatAnswer answer{.pieces = 3, .first_seconds = 0.25, .stream_seconds = 2};
    answer.usage.completion_tokens = 21;
    EXPECT_EQ(closing_line(answer), "[21 tokens, 10.0 tokens/s, first after 0.25 s]");
    answer.usage.accepted_tokens = 14;
    answer.finish_reason = "length";
    EXPECT_EQ(closing_line(answer),
              "[21 tokens, 10.0 tokens/s, 2.00 accepted per step, first after 0.25 s, cut at its "
              "longest]");
    answer.usage = {};
    answer.finish_reason.clear();
    answer.stopped = true;
    EXPECT_EQ(closing_line(answer), "[about 3 tokens, 1.0 tokens/s, first after 0.25 s, stopped]");
    EXPECT_EQ(closing_line({.stopped = true}), "[about 0 tokens, stopped]");
}

TEST(ChatHistory, IsThereAgainAndForNobodyElse) {
    const TemporaryDirectory directory;
    const auto path = directory.path() / "new" / "history";
    {
        auto history = ChatHistory::open(path);
        ASSERT_TRUE(history);
        EXPECT_TRUE(history->lines().empty());
        for (const char* line : {"one", "two\nlines \"and\" 漢", "again", "again"})
            EXPECT_TRUE(history->add(line));
    }
    EXPECT_EQ(ChatHistory::open(path)->lines(),
              (std::vector<std::string>{"one", "two\nlines \"and\" 漢", "again"}));
    struct stat status = {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST(ChatHistory, KeepsTheLastLinesAndSkipsSpoiltOnes) {
    const TemporaryDirectory directory;
    const auto path = directory.path() / "history";
    {
        std::ofstream file(path);
        file << "no JSON\n{\"a\":1}\n";
        for (std::size_t i = 0; i < ChatHistory::kMaxLines + 5; ++i) file << '"' << i << "\"\n";
    }
    for (int again = 0; again < 2; ++again) {
        const auto history = ChatHistory::open(path);
        ASSERT_TRUE(history);
        EXPECT_EQ(history->lines().size(), ChatHistory::kMaxLines);
        EXPECT_EQ(history->lines().front(), "5");
    }
    auto none = ChatHistory::open("");
    EXPECT_TRUE(none->add("x"));
    EXPECT_EQ(none->lines().size(), 1u);
    EXPECT_FALSE(ChatHistory::open(directory.path()));  // a directory is no file
    auto lost = ChatHistory::open(path / "below a file");
    EXPECT_FALSE(lost && lost->add("x"));
}

std::string chat_stream(const std::vector<std::string>& pieces) {
    std::vector<std::string> events;
    for (const std::string& piece : pieces)
        events.push_back("data: {\"choices\":[{\"delta\":{\"content\":" + Json(piece).dump() +
                         "}}]}\n\n");
    events.push_back(
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    return http_chunked(events);
}

class Session : public testing::Test {
  protected:
    void connect(std::function<ScriptedAnswer(const Json& body)> answer) {
        server_ = std::make_unique<StandInServer>([answer](const std::string& request) {
            return answer(Json::parse(request.substr(request.find("\r\n\r\n") + 4)));
        });
        client_ = std::move(
            *client::HttpClient::open({.url = *client::parse_url(server_->url()), .api_key = {}}));
    }
    std::unique_ptr<StandInServer> server_;
    std::unique_ptr<client::HttpClient> client_;
};

TEST_F(Session, CarriesItsTurns) {
    std::vector<Json> seen;
    connect([&](const Json& body) {
        seen.push_back(body);
        return ScriptedAnswer{chat_stream({"an", "swer"})};
    });
    ChatSession session(*client_, {{"model", "m"}, {"temperature", 0.5}}, "be brief");
    std::string shown;
    const auto show = [&](std::string_view piece) { shown += piece; };
    EXPECT_EQ(session.ask("first", show).text, "answer");
    const ChatAnswer second = session.ask("second", show);
    EXPECT_FALSE(second.failure);
    EXPECT_EQ(second.pieces, 2);
    EXPECT_EQ(shown, "answeranswer");
    EXPECT_EQ(seen[1]["model"], "m");
    EXPECT_EQ(seen[1]["temperature"], 0.5);
    EXPECT_EQ(seen[1]["stream"], true);
    EXPECT_EQ(seen[1]["messages"], Json::parse(R"([{"role":"system","content":"be brief"},
        {"role":"user","content":"first"},{"role":"assistant","content":"answer"},
        {"role":"user","content":"second"}])"));
    EXPECT_EQ(session.take_back(), "second");
    EXPECT_EQ(session.messages().size(), 3u);
    session.clear();
    EXPECT_EQ(session.messages().size(), 1u);
    EXPECT_FALSE(session.take_back());
}

TEST_F(Session, AQuestionThatFailsLeavesNoTrace) {
    int number = 0;
    connect([&](const Json& body) {
        EXPECT_EQ(body["messages"].size(), 1u);
        return ScriptedAnswer{++number == 1
                                  ? http_answer(400, R"({"error":{"message":"too long"}})")
                                  : "garbage\r\n\r\n"};
    });
    ChatSession session(*client_, {}, "");
    const auto show = [](std::string_view) {};
    EXPECT_EQ(session.ask("first", show).failure->message, "HTTP 400: too long");
    EXPECT_EQ(session.ask("second", show).failure->kind, client::FailureKind::protocol);
    EXPECT_TRUE(session.messages().empty());
}

TEST_F(Session, CtrlCKeepsWhatCame) {
    connect([&](const Json&) {
        std::string bytes = chat_stream({"begun "});
        bytes.resize(bytes.find("data: {\"choices\":[{\"delta\":{},") - 4);  // before its chunk
        return ScriptedAnswer{.bytes = bytes, .hold = true};
    });
    ChatSession session(*client_, {}, "");
    const ChatAnswer answer =
        session.ask("first", [](std::string_view) { ::kill(::getpid(), SIGINT); });
    EXPECT_TRUE(answer.stopped);
    EXPECT_FALSE(answer.failure);
    EXPECT_EQ(answer.text, "begun ");
    EXPECT_EQ(session.messages().back()["content"], "begun ");
}

}  // namespace
}  // namespace espalier::cli
