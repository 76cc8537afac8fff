// SPDX-License-Identifier: Apache-2.0
#include "server/running_server.hpp"

#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "checkpoint/synthetic.hpp"
#include "support/marked_tokenizer.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::server::test {

using namespace std::chrono_literals;

const std::string& tiny_model() {
    static const TemporaryDirectory directory;
    static const std::string path = [] {
        const auto model = directory.path() / "tiny";
        ThreadPool pool(1);
        auto preset = checkpoint::synthetic_preset("tiny-v3");
        const auto written = checkpoint::write_synthetic(*preset, model, pool);
        if (!written) throw std::runtime_error(written.error().message);
        std::ofstream(model / "chat_template.jinja")
            << "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]"
               "{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}[assistant]"
               "{% endif %}{{ mood }}";
        return model.string();
    }();
    return path;
}

const std::string& tool_model() {
    static const TemporaryDirectory directory;
    static const std::string path = [] {
        namespace fs = std::filesystem;
        const fs::path model = directory.path() / "tools";
        fs::copy(tiny_model(), model);
        std::ifstream in(model / "tokenizer.json");
        const std::string plain{std::istreambuf_iterator<char>(in), {}};
        in.close();
        std::ofstream(model / "tokenizer.json")
            << espalier::test::marked_tokenizer_json(plain, espalier::test::all_markers());
        std::ofstream(model / "chat_template.jinja")
            << "{{ bos_token }}{% for tool in tools or [] %}{{ tool.function.name }}: "
               "{{ tool.function.parameters | tojson }}{% endfor %}{% for message in messages %}"
               "[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls "
               "or "
               "[] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ call.function.name }}"
               "<｜tool▁sep｜>{{ call.function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
               "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]"
               "{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}";
        return model.string();
    }();
    return path;
}

ServerOptions test_options() {
    ServerOptions options;
    options.port = 0;
    return options;
}

RunningServer::RunningServer(const Setup& setup)
    : log_file(std::tmpfile()), log(Log::Format::text, log_file) {
    auto started = Server::start(setup.server, log);
    if (!started) throw std::runtime_error(started.error().message);
    server = std::move(*started);
    if (!setup.load) return;
    runtime::RuntimeOptions options;
    options.model = setup.model;
    options.load.threads = 1;
    options.engine.sizes = setup.sizes;
    options.engine.speculate = setup.speculate;
    options.engine.page_events = server->kv_events();
    auto opened = runtime::Runtime::open(options);
    if (!opened) throw std::runtime_error(opened.error().message);
    runtime = std::make_unique<runtime::Runtime>(std::move(*opened));
    const auto served = server->serve(*runtime);
    if (!served) throw std::runtime_error(served.error().message);
    const std::uint16_t probes = server->monitor_port().value_or(port());
    while (Client(probes).get("/health").status != 200) std::this_thread::sleep_for(1ms);
}

RunningServer::~RunningServer() {
    server.reset();
    std::fclose(log_file);
}

bool RunningServer::reaches(const std::function<bool(const engine::EngineStatus&)>& condition) {
    for (int i = 0; i < 300'000; ++i) {  // only what hangs takes as long
        if (condition(status())) return true;
        std::this_thread::sleep_for(1ms);
    }
    return false;
}

bool RunningServer::becomes_idle() {
    return reaches([](const engine::EngineStatus& status) {
        return status.queued + status.gauges.waiting + status.gauges.prefilling +
                   status.gauges.running + status.gauges.pages.owned ==
               0;
    });
}

std::string RunningServer::log_text() {
    // The server goes on writing at its own place in the file.
    std::string text;
    std::array<char, 4096> bytes{};
    for (ssize_t count = 0; (count = pread(fileno(log_file), bytes.data(), bytes.size(),
                                           static_cast<off_t>(text.size()))) > 0;)
        text.append(bytes.data(), static_cast<std::size_t>(count));
    return text;
}

nlohmann::json RunningServer::completion(const std::string& prompt, int max_tokens) {
    return {{"model", "tiny"},    {"prompt", prompt}, {"max_tokens", max_tokens},
            {"temperature", 0.8}, {"seed", 7},        {"ignore_eos", true}};
}

}  // namespace espalier::server::test
