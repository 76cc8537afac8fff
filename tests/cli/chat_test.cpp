// SPDX-License-Identifier: Apache-2.0
// espalier chat as a process: through pipes, and on a terminal.
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/stand_in_server.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::cli {
namespace {

using test::http_answer;
using test::http_chunked;
using test::ScriptedAnswer;
using test::StandInServer;
using Json = nlohmann::json;

std::string read_file(const std::filesystem::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

struct Ended {
    int status;
    std::string out, err;
};

// With `input` in a pipe.
Ended chat(const std::string& arguments, const std::string& input) {
    const TemporaryDirectory directory;
    std::ofstream(directory.path() / "in") << input;
    const std::string at = directory.path().string();
    const std::string command = std::string(ESPALIER_BINARY) + " chat " + arguments +
                                " --history '' < " + at + "/in > " + at + "/out 2> " + at + "/err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), read_file(directory.path() / "out"),
            read_file(directory.path() / "err")};
}

// A tiny model of random weights; with a template if one is given.
std::string make_model(const TemporaryDirectory& directory, const std::string& chat_template) {
    const std::string made = (directory.path() / "tiny").string();
    const std::string command =
        std::string(ESPALIER_BINARY) + " make-model --preset tiny-v3 --out " + made;
    EXPECT_EQ(std::system((command + " > /dev/null").c_str()), 0);
    if (!chat_template.empty())
        std::ofstream(std::filesystem::path(made) / "chat_template.jinja") << chat_template;
    return made;
}

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]";

TEST(Chat, WithAModelAnswersEveryLineOfAPipe) {
    const TemporaryDirectory directory;
    const std::string model = make_model(directory, kTemplate);
    const std::string arguments = model + " --threads 1 -n 6 --temperature 0.8 --seed 3";
    const Ended two = chat(arguments, "hello\n\n/clear\nhello\n");
    EXPECT_EQ(two.status, 0) << two.err;
    EXPECT_NE(two.err.find("[6 tokens, "), std::string::npos) << two.err;
    EXPECT_NE(two.err.find("accepted per step"), std::string::npos) << two.err;
    EXPECT_NE(two.err.find("[a new conversation]"), std::string::npos);
    const Ended one = chat(arguments, "hello");
    EXPECT_EQ(one.status, 0) << one.err;
    EXPECT_EQ(two.out, one.out + one.out);  // the same question anew, with the same seed
}

TEST(Chat, WithoutATemplateSaysSoAtOnce) {
    const TemporaryDirectory directory;
    const std::string model = make_model(directory, "");
    const Ended ended = chat(model + " --threads 1", "hello\n");
    EXPECT_EQ(ended.status, 1);
    EXPECT_NE(ended.err.find("has no chat template"), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("espalier generate"), std::string::npos) << ended.err;
    std::ofstream(directory.path() / "t.jinja") << kTemplate;
    const std::string given = " --chat-template " + (directory.path() / "t.jinja").string();
    EXPECT_EQ(chat(model + " --threads 1 -n 2" + given, "hello\n").status, 0);
}

TEST(Chat, WantsAModelOrAServer) {
    const Ended ended = chat("", "hello\n");
    EXPECT_EQ(ended.status, 1);
    EXPECT_NE(ended.err.find("--url http://"), std::string::npos);
    EXPECT_EQ(chat("--url ftp://x", "hello\n").status, 1);
}

std::string event(const std::string& content) {
    return "data: {\"choices\":[{\"delta\":{\"content\":" + Json(content).dump() + "}}]}\n\n";
}
const std::string kEnd =
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

ScriptedAnswer answer_of(const std::string& request) {
    if (request.starts_with("GET /v1/models"))
        return {http_answer(200, "{\"data\":[{\"id\":\"m\\u001b[31m\"}]}")};
    const Json body = Json::parse(request.substr(request.find("\r\n\r\n") + 4));
    const std::string question = body["messages"].back()["content"];
    if (question == "refuse")
        return {http_answer(429, "{\"error\":{\"message\":\"\\u001b[2Jfull\"}}")};
    if (question == "endless") {
        std::string bytes = "HTTP/1.1 200 OK\r\n\r\n" + event("begun");
        return {.bytes = bytes, .hold = true};
    }
    return {http_chunked(
        {event("to " + question + ": "), event("\x1b]0;evil\x07\x1b[31mred\n"), kEnd})};
}

TEST(Chat, WithAServerLetsNoEscapeSequenceThrough) {
    const StandInServer server(answer_of);
    const Ended ended = chat("--url " + server.url(), "one\nrefuse\n/regen\n");
    EXPECT_EQ(ended.status, 1);  // one question got no answer
    EXPECT_EQ(ended.out, "to one: ␛]0;evil␇␛[31mred\n\nto one: ␛]0;evil␇␛[31mred\n\n");
    EXPECT_NE(ended.err.find("HTTP 429: "), std::string::npos) << ended.err;
    EXPECT_EQ((ended.out + ended.err).find('\x1b'), std::string::npos);
}

// The binary on a terminal of its own.
class Terminal {
  public:
    explicit Terminal(std::vector<std::string> arguments) {
        id_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
        if (id_ < 0)
            ADD_FAILURE() << "no terminal to be had (is /dev/pts mounted?): "
                          << std::strerror(errno);
        if (id_ == 0) {
            setenv("TERM", "xterm", 1);
            arguments.insert(arguments.begin(), {ESPALIER_BINARY, "chat"});
            std::vector<char*> pointers;
            for (std::string& argument : arguments) pointers.push_back(argument.data());
            pointers.push_back(nullptr);
            execv(ESPALIER_BINARY, pointers.data());
            _exit(127);
        }
    }
    ~Terminal() {
        if (id_ > 0) {
            ::kill(id_, SIGKILL);
            ::waitpid(id_, nullptr, 0);
        }
        ::close(terminal_);
    }
    void type(std::string_view keys) {
        ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), std::ssize(keys));
    }
    // Reads until `text` has come behind what was waited for before.
    bool shows(const std::string& text) {
        std::size_t found = std::string::npos;
        while ((found = screen_.find(text, seen_)) == std::string::npos) {
            char bytes[4096];
            const ssize_t count = ::read(terminal_, bytes, sizeof bytes);
            if (count <= 0) return false;
            screen_.append(bytes, static_cast<std::size_t>(count));
        }
        seen_ = found + text.size();
        return true;
    }
    int wait() {
        char bytes[4096];
        while (::read(terminal_, bytes, sizeof bytes) > 0) {
        }
        int status = 0;
        ::waitpid(std::exchange(id_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    const std::string& screen() const { return screen_; }

  private:
    int terminal_ = -1;
    pid_t id_ = -1;
    std::string screen_;
    std::size_t seen_ = 0;
};

// The cursor behind an empty prompt: the editor waits for keys.
const std::string kPrompt = "\r> \x1b[K\r\x1b[2C";

TEST(Chat, OnATerminalCtrlCStopsAnAnswerAndCtrlDEnds) {
    const StandInServer server(answer_of);
    const TemporaryDirectory directory;
    const std::string history = (directory.path() / "history").string();
    {
        Terminal terminal({"--url", server.url(), "--history", history});
        ASSERT_TRUE(terminal.shows(kPrompt)) << terminal.screen();
        terminal.type("twx\x7fo\r");
        ASSERT_TRUE(terminal.shows("to two: ␛]0;evil␇␛[31mred")) << terminal.screen();
        ASSERT_TRUE(terminal.shows(kPrompt));
        terminal.type("half a line\x03");
        ASSERT_TRUE(terminal.shows(kPrompt));
        terminal.type("endless\r");
        ASSERT_TRUE(terminal.shows("begun"));
        terminal.type("\x03");
        ASSERT_TRUE(terminal.shows("stopped]")) << terminal.screen();
        ASSERT_TRUE(terminal.shows(kPrompt));
        terminal.type("\x1b[A\x1b[A\r");  // the question before the last
        ASSERT_TRUE(terminal.shows("to two: "));
        ASSERT_TRUE(terminal.shows(kPrompt));
        terminal.type("\x04");
        EXPECT_EQ(terminal.wait(), 0);
        EXPECT_EQ(terminal.screen().find("\x1b]0;"), std::string::npos);
        EXPECT_EQ(terminal.screen().find("\x1b[31m"), std::string::npos);
    }
    EXPECT_EQ(read_file(history), "\"two\"\n\"endless\"\n\"two\"\n");
}

}  // namespace
}  // namespace espalier::cli
