// SPDX-License-Identifier: Apache-2.0
// espalier serve: an OpenAI-compatible server. The main thread waits for signals and for the model;
// a thread of its own loads that, so that probes are answered meanwhile.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/identity_text.hpp"
#include "cli/pull.hpp"
#include "cli/service_manager.hpp"
#include "cli/settings.hpp"
#include "runtime/identity.hpp"
#include "server/metrics.hpp"
#include "server/server.hpp"

namespace espalier::cli {
namespace {

// Tokens of a step, where nothing else is said: a prompt quantum of 512 and 256 for roots and
// drafts. Others' prompts hold a stream up for one such step at most.
constexpr std::int64_t kStepTokens = 768;

struct ServeOptions {
    std::string model;
    std::string config;
    server::ServerOptions server;
    EngineFlags engine;
    bool explain = false;
    bool print_flags = false, print_metrics = false;
};

// A flag for each option of the server.
struct ServerFlags {
    CLI::App& command;

    static std::string flag_of(std::string name) {
        std::ranges::replace(name, '_', '-');
        return "--" + name;
    }
    template <typename T>
    void operator()(const server::Flag& flag, T& value) const {
        command.add_option(flag_of(flag.name), value, flag.help)->capture_default_str();
    }
    void operator()(const server::Flag& flag, std::string& value) const {
        CLI::Option* option = command.add_option(flag_of(flag.name), value, flag.help);
        option->capture_default_str();
        if (!flag.one_of.empty()) option->check(CLI::IsMember(flag.one_of));
    }
    void operator()(const server::Flag& flag, std::vector<std::string>& value) const {
        command.add_option(flag_of(flag.name), value, flag.help)->allow_extra_args(false);
    }
};

// Milliseconds: how often a server looks whether its engine still runs.
constexpr int kLookAfterEngine = 500;

// A descriptor that poll() can wait for; closed with its owner.
class Descriptor {
  public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() { ::close(number_); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number() const { return number_; }

  private:
    int number_;
};

// Those that end the server, and SIGHUP where there is something to read again; where there is
// nothing it ends the process, as a terminal that closes means it to.
sigset_t awaited_signals(bool reloads) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (reloads) sigaddset(&signals, SIGHUP);
    return signals;
}

sigset_t server_signals(const ServeOptions& options) {
    return awaited_signals(!options.server.api_key_file.empty() ||
                           !options.server.tls_cert.empty());
}

// Loads the model beside the server, and says when it is there.
class Loader {
  public:
    Loader(const ServeOptions& options, server::Server& server, server::Log& log)
        : done_(eventfd(0, EFD_CLOEXEC)), thread_([this, &options, &server, &log] {
              result_ = load(options, server, log);
              const std::uint64_t one = 1;
              [[maybe_unused]] const auto written = ::write(done_.number(), &one, sizeof one);
          }) {}
    ~Loader() { finish(); }
    int done() const { return done_.number(); }
    // From here on requests may be answered, also while done() is not readable yet.
    bool opened() const { return opened_; }
    // After done(): the runtime, or why there is none.
    const Expected<void>& finish() {
        if (thread_.joinable()) thread_.join();
        return result_;
    }
    std::optional<runtime::Runtime>& runtime() { return runtime_; }

  private:
    Expected<void> load(const ServeOptions& options, server::Server& server, server::Log& log) {
        const auto start = std::chrono::steady_clock::now();
        ESPALIER_ASSIGN_OR_RETURN(const std::string model, fetched_model(options.model));
        ESPALIER_ASSIGN_OR_RETURN(const std::string draft, fetched_model(options.engine.draft));
        runtime::RuntimeOptions wanted{.model = model,
                                       .draft = draft,
                                       .load = options.engine.load,
                                       .engine = options.engine.engine};
        wanted.engine.page_events = server.kv_events();
        ProgressBar bar("loading");
        wanted.load.progress = [&](std::uint64_t done, std::uint64_t total) {
            bar.update(done, total);
        };
        wanted.load.say = [&](const std::string& what) { log.info(what); };
        ESPALIER_ASSIGN_OR_RETURN(runtime::Runtime opened, runtime::Runtime::open(wanted));
        runtime_.emplace(std::move(opened));
        opened_ = true;
        for (const std::string& note : runtime_->files().notes()) log.warning(note);
        if (const auto note = runtime::note_on_cache(runtime_->loaded())) log.warning(*note);
        if (!runtime_->note().empty()) log.warning(runtime_->note());
        ESPALIER_RETURN_IF_ERROR(server.serve(*runtime_));
        log.info(fmt::format(
            "{} is ready after {:.2f} s", options.model,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()));
        return {};
    }

    Descriptor done_;
    std::atomic<bool> opened_ = false;
    std::optional<runtime::Runtime> runtime_;
    Expected<void> result_;
    std::thread thread_;
};

void announce(const ServeOptions& options, const server::Server& server, server::Log& log) {
    const bool is_v6 = options.server.host.find(':') != std::string::npos;
    log.info(fmt::format("listening on {}://{}{}{}:{}",
                         options.server.tls_cert.empty() ? "http" : "https", is_v6 ? "[" : "",
                         options.server.host, is_v6 ? "]" : "", server.port()));
    if (const auto port = server.monitor_port())
        log.info(
            fmt::format("metrics and probes at {} port {}", options.server.monitor_host, *port));
    if (const auto& events = server.kv_events())
        log.info(fmt::format("KV events at {}{}{}; they contain prompts", events->endpoint(),
                             events->replay_endpoint().empty() ? "" : ", replays at ",
                             events->replay_endpoint()));
    const bool is_local = options.server.host.starts_with("127.") ||
                          options.server.host == "localhost" || options.server.host == "::1";
    if (!is_local && options.server.api_key.empty() && options.server.api_key_file.empty())
        log.warning("other machines can reach this server, and it asks for no --api-key");
}

enum class Wake { none, end, reload };

// none: the model is loaded, or could not be, or (milliseconds ≥ 0) the time is over.
Wake wait_for_signal(int signals, int loaded, int milliseconds) {
    pollfd waiting[] = {{signals, POLLIN, 0}, {loaded, POLLIN, 0}};
    while (::poll(waiting, loaded < 0 ? 1 : 2, milliseconds) < 0) {
    }
    if ((waiting[0].revents & POLLIN) == 0) return Wake::none;
    signalfd_siginfo taken{};  // what is not read stays pending, and would count as the second
    if (::read(signals, &taken, sizeof taken) <= 0) return Wake::none;
    return taken.ssi_signo == SIGHUP ? Wake::reload : Wake::end;
}

// Until one that ends the server comes, or nothing more is to be waited for.
Wake wait_for_end(int signals, int loaded, int milliseconds, server::Server& server) {
    Wake wake = wait_for_signal(signals, loaded, milliseconds);
    for (; wake == Wake::reload; wake = wait_for_signal(signals, loaded, milliseconds))
        server.reload();
    return wake;
}

// Streams outlive nothing here: the server goes before the runtime, the loader holds both back.
Expected<void> run_server(const ServeOptions& options, const std::vector<std::string>& ignored) {
    const sigset_t signals = server_signals(options);
    std::signal(SIGPIPE, SIG_IGN);  // a log without a reader is no reason to end
    const Descriptor arrived(signalfd(-1, &signals, SFD_CLOEXEC));
    server::raise_file_limit();
    server::Log log(
        options.server.log_format == "json" ? server::Log::Format::json : server::Log::Format::text,
        stderr, server::level_of(options.server.log_level));
    for (const std::string& what : ignored)
        log.warning(fmt::format("environment: {} and was ignored", what));
    ESPALIER_ASSIGN_OR_RETURN(const auto server, server::Server::start(options.server, log));
    announce(options, *server, log);
    Loader loader(options, *server, log);
    bool stopped = wait_for_end(arrived.number(), loader.done(), -1, *server) == Wake::end;
    if (stopped && !loader.opened()) {
        log.info("stopped while loading");
        std::_Exit(0);  // no request is being answered, and reading weights cannot be interrupted
    }
    if (const auto& loaded = loader.finish(); !loaded) return tl::unexpected<Error>(loaded.error());
    notify_service_manager("READY=1");
    engine::Engine& engine = loader.runtime()->engine();
    bool failed = false;
    while (!stopped && !failed) {
        stopped = wait_for_end(arrived.number(), -1, kLookAfterEngine, *server) == Wake::end;
        failed = engine.status().state == engine::EngineState::failed;
    }
    if (failed) log.error(fmt::format("the engine failed: {}", engine.status().failure));
    notify_service_manager("STOPPING=1");
    // A second signal ends the process at once, as it would by itself.
    const sigset_t ending = awaited_signals(false);
    pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
    log.info(fmt::format("shutting down: requests have {} seconds to finish",
                         options.server.drain_seconds));
    const bool finished = server->shut_down();
    log.info(finished ? "all requests finished" : "requests were ended before they finished");
    const std::string failure = engine.status().failure;
    ESPALIER_RETURN_IF_ERROR(loader.runtime()->stop());
    // A service manager starts the process again; no request could be answered.
    if (failed) return fail(ErrorKind::io, "the engine failed: {}", failure);
    return {};
}

std::string drafts_text(const runtime::DrafterChoice& drafters, const runtime::ModelFiles& files) {
    const std::vector<std::string> others = runtime::left_out(drafters, files);
    return fmt::format("{}{}{}",
                       drafters.any() ? fmt::to_string(fmt::join(drafters.names(), ", ")) : "none",
                       others.empty() ? "" : "; without ", fmt::join(others, ", "));
}

std::string grant_text(const runtime::EngineOptions& engine,
                       const runtime::DrafterChoice& drafters) {
    if (!drafters.any()) return "no drafts";
    return engine.grant == engine::NodeGrant::measured
               ? "as many drafts a step as are measured to pay"
               : "every draft that fits a step, whether or not it pays";
}

std::string memory_text(const runtime::EngineOptions& engine,
                        const runtime::DrafterChoice& drafters) {
    if (!drafters.any() || engine.speculation_memory.empty())
        return "nothing is kept of what drafts gain";
    return fmt::format("what drafts gained here, in {}", engine.speculation_memory);
}

std::string weights_text(const checkpoint::Checkpoint& checkpoint,
                         const runtime::LoadOptions& load) {
    const std::string file = runtime::cached_weights_file(checkpoint, load);
    if (file.empty()) return "as they lie beside the model, or packed in memory; none are kept";
    std::error_code error;
    return fmt::format(
        "{} {}", std::filesystem::exists(file, error) ? "mapped from" : "packed once into", file);
}

// A form of calls or reasoning; null: none was found.
template <typename Form>
std::string form_text(const Form* form, const std::string& asked, const char* flag) {
    const bool is_automatic = asked == "auto";
    if (form != nullptr)
        return fmt::format("{}{}", form->name,
                           is_automatic ? ", by the model's template and tokenizer" : "");
    if (!is_automatic) return "none, as asked for";
    return fmt::format(
        "none: the template and the tokenizer have the markers of no form that is known ({} names "
        "one)",
        flag);
}

Expected<void> explain(const ServeOptions& options, const CLI::App& command,
                       const Sources& sources) {
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              runtime::ModelFiles::open(options.model, options.engine.draft));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::DrafterChoice drafters,
                              runtime::choose_drafters(options.engine.engine.speculate, files));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::SizeFacts facts,
                              runtime::size_facts(files, drafters, options.engine.load));
    ESPALIER_ASSIGN_OR_RETURN(const EngineSizes sizes,
                              runtime::derive_sizes(options.engine.engine.sizes, facts));
    ESPALIER_ASSIGN_OR_RETURN(const int threads,
                              runtime::thread_count(options.engine.load.threads));
    ESPALIER_RETURN_IF_ERROR(server::check_options(options.server));
    ESPALIER_ASSIGN_OR_RETURN(const server::ChatForms chats,
                              server::chat_forms(files, options.server));
    fmt::print("{}", explain_settings(command, sources));
    const auto bytes = [](std::int64_t count) { return bytes_text(static_cast<double>(count)); };
    const std::string what_holds =
        facts.gpu_bytes == 0
            ? fmt::format("nine tenths of {} hold them and {} of weights",
                          bytes(facts.memory_bytes), bytes(facts.weight_bytes))
            : fmt::format(
                  "of {} free on the GPU, beside {} of weights and {} of activations and "
                  "workspaces",
                  bytes(facts.memory_bytes), bytes(facts.weight_bytes),
                  bytes(facts.working_bytes(sizes)));
    fmt::print(
        "\nFrom these, the model and this machine:\n"
        "  served as       {}\n"
        "  context         {} tokens (the model's: {})\n"
        "  rows            {} requests in a step\n"
        "  step            {} tokens at most: one per row, a prompt quantum of 512, the rest "
        "drafts "
        "and prompts\n"
        "  cache           {} pages of 64 tokens, {} ({})\n"
        "  queue           {} requests, {} tokens of prompts; more are answered with 429\n"
        "  weights         {}\n"
        "  threads         {} for the model, {} for requests, one for connections\n"
        "  drafts          {}\n"
        "  grant           {}\n"
        "  learnt before   {}\n"
        "  chats           {}\n"
        "  tool calls      {}\n"
        "  reasoning       {}\n"
        "  grammars        {} of compiled ones and {} of masks are kept at most\n",
        options.server.served_model_name.empty() ? server::default_model_name(options.model)
                                                 : options.server.served_model_name.front(),
        sizes.max_model_len, facts.context, sizes.max_rows, sizes.max_step_tokens,
        sizes.page_count - 1, bytes(sizes.page_count * facts.page_bytes), what_holds,
        sizes.max_waiting, sizes.max_waiting_tokens,
        weights_text(*files.checkpoint, options.engine.load), threads, options.server.workers,
        drafts_text(drafters, files), grant_text(options.engine.engine, drafters),
        memory_text(options.engine.engine, drafters), chats.chat_template,
        form_text(chats.formats.tools, options.server.tool_format, "--tool-format"),
        form_text(chats.formats.reasoning, options.server.reasoning_format, "--reasoning-format"),
        bytes(static_cast<std::int64_t>(grammar::CompilerLimits().cache_bytes)),
        bytes(static_cast<std::int64_t>(grammar::CompilerLimits().mask_bytes)));
    ESPALIER_ASSIGN_OR_RETURN(const TextIdentity identity,
                              runtime::text_identity(*files.checkpoint, options.engine.load,
                                                     options.engine.engine.prefill_segment));
    fmt::print("\n{}", identity_text(identity));
    return {};
}

Expected<void> run(ServeOptions& options, CLI::App& command) {
    if (options.print_flags) {
        fmt::print("{}", flags_page(command));
        return {};
    }
    if (options.print_metrics) {
        fmt::print("{}", server::metrics_page());
        return {};
    }
    std::vector<std::string> ignored;
    ESPALIER_ASSIGN_OR_RETURN(const Sources sources,
                              apply_settings(command, options.config, ignored));
    if (options.model.empty())
        return fail(ErrorKind::invalid,
                    "which model? espalier serve MODEL, ESPALIER_MODEL or model = … in --config");
    if (!options.explain) {
        const sigset_t signals = server_signals(options);
        pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in every thread from here on
    }
    ESPALIER_ASSIGN_OR_RETURN(const auto ranks, options.engine.start_ranks());
    if (options.explain) return explain(options, command, sources);
    return run_server(options, ignored);
}

}  // namespace

Run add_serve(CLI::App& app) {
    const auto options = std::make_shared<ServeOptions>();
    CLI::App* command = app.add_subcommand("serve", "Answer OpenAI-compatible requests over HTTP");
    command->footer(
        "Every flag can also be set by the environment (ESPALIER_MAX_MODEL_LEN) and in the file of "
        "--config\n(max-model-len = 4096); docs/flags.md lists them, docs/server.md tells the "
        "rest.");
    command->add_option(
        "model,--model", options->model,
        "Model directory, GGUF file, or ORG/NAME[@REVISION], which is fetched where the "
        "hub cache has it not (espalier pull)");
    server::ServerOptions::flags(ServerFlags{*command}, options->server);
    options->engine.add_speculate_to(*command);
    options->engine.add_kept_to(*command);
    options->engine.engine.sizes.step_tokens = kStepTokens;
    options->engine.add_to(*command, {.rows = "0: 32",
                                      .pages = "0: the longest sequence for every row, or what "
                                               "nine tenths of the memory hold"});
    command->add_option("--config", options->config, "File of settings, key = value");
    command->add_flag("--explain", options->explain,
                      "Print the settings and their reasons instead of serving");
    command->add_flag("--print-flags", options->print_flags, "Print docs/flags.md");
    command->add_flag("--print-metrics", options->print_metrics, "Print docs/metrics.md");
    return [options, command] { return run(*options, *command); };
}

}  // namespace espalier::cli
