// SPDX-License-Identifier: Apache-2.0
// Commands on several ranks as processes: one text for any number of them; a rank that is killed,
// hangs or loses the first one ends all, by name, and no process is left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/binary.hpp"
#include "support/temporary_directory.hpp"
#ifdef ESPALIER_SERVER
#include "server/client.hpp"
#endif

namespace espalier::cli {
namespace {

using namespace std::chrono_literals;
using test::run_binary;

// A tiny model of random weights, written once.
const std::string& tiny() {
    static const TemporaryDirectory directory;
    static const std::string path = [] {
        const std::string made = (directory.path() / "tiny").string();
        EXPECT_EQ(run_binary("make-model --preset tiny-v3 --out " + made).status, 0);
        return made;
    }();
    return path;
}

bool soon(const std::function<bool()>& holds) {
    for (int i = 0; i < 60'000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
    return holds();
}

bool is_gone(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string id, name, state;
    return !(in >> id >> name >> state) || state == "Z";
}

// The binary, what it prints in a file.
class RankedProcess {
  public:
    explicit RankedProcess(std::vector<std::string> words) : output_(directory_.path() / "output") {
        words.insert(words.begin(), "espalier");
        id_ = fork();
        if (id_ == 0) {
            const int file = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
            dup2(file, STDERR_FILENO);
            dup2(file, STDOUT_FILENO);
            std::vector<char*> pointers;
            for (std::string& word : words) pointers.push_back(word.data());
            pointers.push_back(nullptr);
            execv(ESPALIER_BINARY, pointers.data());
            _exit(127);
        }
    }
    ~RankedProcess() {
        if (id_ <= 0) return;
        ::kill(id_, SIGKILL);
        ::waitpid(id_, nullptr, 0);
    }
    std::string output() const {
        std::stringstream text;
        text << std::ifstream(output_).rdbuf();
        return text.str();
    }
    bool says(const std::string& text) const {
        return soon([&] { return output().find(text) != std::string::npos; });
    }
    pid_t id() const { return id_; }
    // Its other ranks, ascending.
    std::vector<pid_t> ranks(std::size_t count) const {
        std::vector<pid_t> found;
        soon([&] {
            found.clear();
            const std::string id = std::to_string(id_);
            std::ifstream in("/proc/" + id + "/task/" + id + "/children");
            for (pid_t pid = 0; in >> pid;) found.push_back(pid);
            return found.size() == count;
        });
        return found;
    }
    // The exit status; minus the signal that ended it.
    int wait() {
        int status = 0;
        ::waitpid(std::exchange(id_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

  private:
    TemporaryDirectory directory_;
    std::filesystem::path output_;
    pid_t id_ = -1;
};

std::vector<std::string> endless(const std::string& ranks) {
    return {"generate",
            tiny(),
            "abc",
            "-n",
            "8000",
            "--ignore-eos",
            "--max-model-len",
            "8192",
            "--threads",
            "1",
            "--speculate",
            "ngram",
            "--speculation-memory",
            "off",
            "--tp",
            ranks};
}

// It generates: a text of some length has been printed.
bool runs(const RankedProcess& process) {
    return soon([&] { return process.output().size() > 100; });
}

TEST(RankProcesses, OneTextForAnyNumber) {
    const std::string arguments = "generate " + test::sapling() +
                                  " 'class Timer:' -n 40 --seed 3 --temperature 0.9 --threads 1 "
                                  "--speculation-memory off --json --logprobs 2 --tp ";
    const auto fields = [&](const std::string& count) {
        const auto json = test::json_of(arguments + count);
        return json["logprobs"].dump() + json["text"].dump();
    };
    const std::string alone = fields("1");
    EXPECT_EQ(fields("2"), alone);
    EXPECT_EQ(fields("4"), alone);
}

TEST(RankProcesses, AKilledRankEndsAllByName) {
    RankedProcess process(endless("4"));
    ASSERT_TRUE(runs(process)) << process.output();
    const std::vector<pid_t> ranks = process.ranks(3);
    ASSERT_EQ(ranks.size(), 3u);
    ::kill(ranks[1], SIGKILL);
    const auto killed = std::chrono::steady_clock::now();
    EXPECT_EQ(process.wait(), 1);
    const auto took = std::chrono::steady_clock::now() - killed;
    RecordProperty(
        "milliseconds",
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
    EXPECT_TRUE(process.says("rank 2 (pid " + std::to_string(ranks[1]) + "): signal 9 (Killed)"))
        << process.output();
    for (const pid_t rank : ranks) EXPECT_TRUE(is_gone(rank));
}

TEST(RankProcesses, AHangingRankEndsAllAfterTheTimeout) {
    auto words = endless("2");
    words.insert(words.end(), {"--rank-timeout-seconds", "1"});
    RankedProcess process(words);
    ASSERT_TRUE(runs(process)) << process.output();
    const std::vector<pid_t> ranks = process.ranks(1);
    ASSERT_EQ(ranks.size(), 1u);
    ::kill(ranks[0], SIGSTOP);
    EXPECT_EQ(process.wait(), 1);
    EXPECT_TRUE(process.says("rank 1 (pid " + std::to_string(ranks[0]) + "): no answer for 1 s"))
        << process.output();
    EXPECT_TRUE(is_gone(ranks[0]));
}

TEST(RankProcesses, NoneOutlivesTheFirst) {
    RankedProcess process(endless("4"));
    ASSERT_TRUE(runs(process)) << process.output();
    const std::vector<pid_t> ranks = process.ranks(3);
    ASSERT_EQ(ranks.size(), 3u);
    ::kill(process.id(), SIGKILL);
    EXPECT_EQ(process.wait(), -SIGKILL);
    EXPECT_TRUE(soon([&] { return is_gone(ranks[0]) && is_gone(ranks[1]) && is_gone(ranks[2]); }));
}

TEST(RankProcesses, RefusalsNameTheFlag) {
    const auto refusal = [](const std::string& arguments) {
        const auto result = run_binary("generate " + tiny() + " abc " + arguments);
        EXPECT_NE(result.status, 0);
        return result.output;
    };
    EXPECT_EQ(refusal("--tp 2 --device cuda"),
              "espalier: --tensor-parallel-size: 2, but the model runs on a GPU: several ranks are "
              "for the CPU\n");
    EXPECT_EQ(refusal("--tp 2 --logits /tmp/none.npy"),
              "espalier: --tensor-parallel-size: 2, but --logits writes those of one rank\n");
    EXPECT_NE(refusal("--tp 65").find("65 not in range"), std::string::npos);
}

#ifdef ESPALIER_SERVER

using Json = nlohmann::json;
using server::test::Client;
using server::test::request_text;

std::vector<std::string> served(const std::string& ranks) {
    return {"serve",
            tiny(),
            "--port",
            "0",
            "--tp",
            ranks,
            "--threads",
            "1",
            "--max-model-len",
            "8192",
            "--speculation-memory",
            "off"};
}

std::uint16_t port_of(const RankedProcess& process) {
    EXPECT_TRUE(process.says("is ready")) << process.output();
    const std::string text = process.output(), mark = "listening on http://127.0.0.1:";
    return static_cast<std::uint16_t>(std::stoi(text.substr(text.find(mark) + mark.size())));
}

std::string stream_of(int tokens) {
    return request_text(
        "POST", "/v1/completions",
        Json{{"prompt", "abc"}, {"max_tokens", tokens}, {"ignore_eos", true}, {"stream", true}}
            .dump());
}

TEST(RankProcesses, AServersStreamsEndWithAnErrorWhenARankIsKilled) {
    RankedProcess process(served("2"));
    const std::uint16_t port = port_of(process);
    const std::vector<pid_t> ranks = process.ranks(1);
    ASSERT_EQ(ranks.size(), 1u);
    Client client(port);
    client.send(stream_of(8000));
    ASSERT_TRUE(client.receive_until("data: "));
    ::kill(ranks[0], SIGKILL);
    EXPECT_TRUE(client.receive_until("\"error\""));
    EXPECT_EQ(process.wait(), 1);
    EXPECT_TRUE(process.says("the engine failed: rank 1 (pid " + std::to_string(ranks[0]) +
                             "): signal 9 (Killed)"))
        << process.output();
}

TEST(RankProcesses, AnIdleServerNoticesAHangingRank) {
    auto words = served("2");
    words.insert(words.end(), {"--rank-timeout-seconds", "1"});
    RankedProcess process(words);
    port_of(process);
    const std::vector<pid_t> ranks = process.ranks(1);
    ASSERT_EQ(ranks.size(), 1u);
    ::kill(ranks[0], SIGSTOP);
    EXPECT_EQ(process.wait(), 1);
    EXPECT_TRUE(process.says("no answer for 1 s")) << process.output();
    EXPECT_TRUE(is_gone(ranks[0]));
}

// The signal of a terminal or a service manager goes to all processes.
TEST(RankProcesses, ASignalToAllDrains) {
    RankedProcess process(served("2"));
    Client client(port_of(process));
    const std::vector<pid_t> ranks = process.ranks(1);
    ASSERT_EQ(ranks.size(), 1u);
    client.send(stream_of(300));
    ASSERT_TRUE(client.receive_until("data: "));
    for (const pid_t pid : {ranks[0], process.id()}) ::kill(pid, SIGTERM);
    EXPECT_TRUE(client.receive_until("data: [DONE]\n\n"));
    EXPECT_EQ(process.wait(), 0);
    EXPECT_TRUE(is_gone(ranks[0]));
}

#endif

}  // namespace
}  // namespace espalier::cli
