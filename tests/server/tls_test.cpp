// SPDX-License-Identifier: Apache-2.0
// TLS of the server: handshakes right and wrong, slow and broken ones, certificates that change
// while streams run. Everything behind the handshake is what plain connections have.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/running_server.hpp"
#include "support/certificates.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::server::test {
namespace {

using espalier::test::CertificateFiles;
using espalier::test::write_certificate;
using Json = nlohmann::json;
namespace fs = std::filesystem;

// Files of one name, whose contents change.
class Certificates {
  public:
    Certificates() { use("first"); }
    const CertificateFiles& files() const { return files_; }
    void use(const std::string& name) {
        const CertificateFiles made = write_certificate(directory_.path().string(), name);
        fs::copy_file(made.certificate, files_.certificate, fs::copy_options::overwrite_existing);
        fs::copy_file(made.key, files_.key, fs::copy_options::overwrite_existing);
    }
    void break_key() const { std::ofstream(files_.key) << "no key\n"; }

  private:
    TemporaryDirectory directory_;
    CertificateFiles files_{(directory_.path() / "cert").string(),
                            (directory_.path() / "key").string()};
};

RunningServer::Setup with_tls(const Certificates& certificates) {
    RunningServer::Setup setup;
    setup.server.tls_cert = certificates.files().certificate;
    setup.server.tls_key = certificates.files().key;
    setup.server.monitor_port = 0;  // plain: the server's own readiness is asked for there
    return setup;
}

bool log_has(RunningServer& server, const std::string& text) {
    for (int i = 0; i < 100'000; ++i) {
        if (server.log_text().find(text) != std::string::npos) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

TEST(Tls, AnswersWhatAPlainConnectionDoes) {
    const Certificates certificates;
    RunningServer plain, secure(with_tls(certificates));
    Client client = secure.secure_client();
    EXPECT_EQ(client.certificate_name(), "first");
    const Json body = RunningServer::completion("abc", 20);
    const auto text = [](const Answer& answer) { return answer.json()["choices"]; };
    EXPECT_EQ(text(client.post("/v1/completions", body)),
              text(plain.client().post("/v1/completions", body)));
    // The connection goes on, with a body of many records and requests that come ahead.
    Json large = body;
    large["prompt"] = std::string(7000, 'a');
    large["user"] = std::string(200'000, 'u');
    EXPECT_EQ(text(client.post("/v1/completions", large)),
              text(plain.client().post("/v1/completions", large)));
    client.send(request_text("GET", "/version") + request_text("GET", "/v1/models") +
                request_text("POST", "/v1/completions", body.dump()));
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_EQ(text(client.receive()), text(plain.client().post("/v1/completions", body)));
    // An answer that ends the connection arrives whole, and its end is TLS's.
    client.send(request_text("GET", "/v1/models", {}, "Connection: close\r\n"));
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_TRUE(client.at_end());
    EXPECT_TRUE(secure.becomes_idle());
}

TEST(Tls, VersionsBefore12AreNotSpoken) {
    const Certificates certificates;
    RunningServer::Setup setup = with_tls(certificates);
    setup.load = false;
    RunningServer server(setup);
    EXPECT_EQ(Client::secure(server.port(), TLS1_3_VERSION).tls_version(), "TLSv1.3");
    EXPECT_EQ(Client::secure(server.port(), TLS1_2_VERSION, TLS1_2_VERSION).tls_version(),
              "TLSv1.2");
    EXPECT_EQ(Client::secure(server.port(), TLS1_VERSION, TLS1_1_VERSION).tls_version(), "");
    EXPECT_EQ(server.secure_client().get("/livez").status, 200);
}

TEST(Tls, APlainRequestIsToldSo) {
    const Certificates certificates;
    RunningServer::Setup setup = with_tls(certificates);
    setup.load = false;
    RunningServer server(setup);
    Client plain = server.client();
    const Answer answer = plain.get("/livez");
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.message().find("https://"), std::string::npos) << answer.body;
    EXPECT_TRUE(plain.at_end());
    // The other way round a plain port takes a handshake for no HTTP, and goes on.
    RunningServer::Setup without;
    without.load = false;
    RunningServer open(without);
    EXPECT_EQ(Client::secure(open.port()).tls_version(), "");
    EXPECT_EQ(open.client().get("/livez").status, 200);
    // Monitors have a plain port beside it.
    EXPECT_EQ(Client(*server.server->monitor_port()).get("/livez").status, 200);
}

TEST(Tls, GarbageAndSlowHandshakesEndWithinTheirTime) {
    const Certificates certificates;
    RunningServer::Setup setup = with_tls(certificates);
    setup.load = false;
    setup.server.read_seconds = 0.3;
    setup.server.idle_seconds = 600;
    setup.server.log_level = "debug";
    RunningServer server(setup);
    Client silent = server.client(), half = server.client(), garbage = server.client(),
           cut = server.client();
    half.send(std::string("\x16\x03\x01\x02\x00\x01", 6));
    garbage.send(std::string("\x16\xff\xff\xff\xff", 5) + std::string(500, '\0'));
    cut.send(std::string("\x16\x03", 2));
    cut.close();
    for (Client* client : {&silent, &half}) EXPECT_TRUE(client->at_end());
    while (!garbage.receive_some().empty()) {  // an alert at most
    }
    // A handshake that is done is not held to that time.
    Client patient = server.secure_client();
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    EXPECT_EQ(patient.get("/livez").status, 200);
}

TEST(Tls, BeyondTheLimitOfConnectionsNothingIsAgreedOn) {
    const Certificates certificates;
    RunningServer::Setup setup = with_tls(certificates);
    setup.load = false;
    setup.server.max_connections = 2;
    RunningServer server(setup);
    Client one = server.secure_client(), two = server.secure_client();
    EXPECT_EQ(one.get("/livez").status, 200);
    EXPECT_EQ(server.secure_client().tls_version(), "");
    one.close();
    for (;;) {
        Client next = server.secure_client();
        if (next.tls_version().empty()) continue;
        EXPECT_EQ(next.get("/livez").status, 200);
        break;
    }
}

TEST(Tls, ACertificateThatChangesTakesNoStreamAlong) {
    Certificates certificates;
    RunningServer server(with_tls(certificates));
    Json body = RunningServer::completion("abc", 3000);
    body["stream"] = true;
    Client stream = server.secure_client(), waiting = server.secure_client();
    stream.send(request_text("POST", "/v1/completions", body.dump()));
    EXPECT_EQ(waiting.get("/version").status, 200);
    certificates.use("second");
    server.server->reload();
    for (;;) {
        Client client = server.secure_client();
        if (client.certificate_name() != "second") continue;
        EXPECT_EQ(client.get("/version").status, 200);
        break;
    }
    // Files that do not fit leave what is there.
    certificates.break_key();
    server.server->reload();
    EXPECT_TRUE(log_has(server, "not read again: tls_key: "));
    EXPECT_EQ(server.secure_client().certificate_name(), "second");
    const Answer whole = stream.receive();
    EXPECT_EQ(whole.status, 200);
    EXPECT_EQ(whole.events().back(), "[DONE]");
    EXPECT_EQ(waiting.get("/version").status, 200);
}

TEST(Tls, AClientThatGoesEndsItsRequest) {
    const Certificates certificates;
    RunningServer server(with_tls(certificates));
    Json body = RunningServer::completion("abc", 7000);
    body["stream"] = true;
    Client client = server.secure_client();
    client.send(request_text("POST", "/v1/completions", body.dump()));
    ASSERT_TRUE(client.receive_until("data: "));
    client.close();
    EXPECT_TRUE(log_has(server, "status=499"));
    EXPECT_TRUE(server.becomes_idle());
}

TEST(Tls, FilesThatDoNotFitEndTheStartWithTheirName) {
    const TemporaryDirectory directory;
    const std::string folder = directory.path().string();
    const CertificateFiles own = write_certificate(folder, "own");
    const CertificateFiles other = write_certificate(folder, "other");
    const auto start = [](const std::string& certificate, const std::string& key) {
        ServerOptions options = test_options();
        options.tls_cert = certificate;
        options.tls_key = key;
        Log log(Log::Format::text);
        const auto server = Server::start(options, log);
        return server ? Error{} : server.error();
    };
    EXPECT_EQ(start(own.certificate, other.key).field, "tls_key");
    EXPECT_EQ(start(folder + "/none", own.key).field, "tls_cert");
    EXPECT_EQ(start(own.certificate, "").message, "tls_cert: given without its private key");
    EXPECT_EQ(start("", own.key).message, "tls_key: given without its certificate");
    EXPECT_EQ(start(own.certificate, own.key).message, "");
}

}  // namespace
}  // namespace espalier::server::test
