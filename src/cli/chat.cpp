// SPDX-License-Identifier: Apache-2.0
// espalier chat: a conversation in the terminal, with a model or with a running server.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accept/sampling_options.hpp"
#include "cli/chat_history.hpp"
#include "cli/chat_session.hpp"
#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/line_reader.hpp"
#include "cli/local_server.hpp"
#include "cli/safe_text.hpp"
#include "client/models.hpp"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHelp =
    "/clear  begin a new conversation\n"
    "/regen  have the last answer again, drawn anew\n"
    "/exit   end, as Ctrl-D does\n"
    "Ctrl-C stops an answer. Alt-Enter, or a backslash at the end, goes on in a new line.\n";

struct ChatOptions {
    std::string model, url, api_key, system, chat_template;
    std::string history = ChatHistory::default_path().string();
    std::int64_t max_tokens = 0;
    accept::SamplingOptions sampling;
    std::map<std::string, CLI::Option*> sampling_flags;  // by the names in requests
    EngineFlags engine;
};

// A flag for each sampling parameter that is a number.
struct SamplingParameterFlags {
    CLI::App& command;
    std::map<std::string, CLI::Option*>& flags;

    template <typename T>
    void operator()(const accept::Parameter& parameter, T& value) const {
        std::string flag = std::string("--") + parameter.name;
        std::ranges::replace(flag, '_', '-');
        flags[parameter.name] = command.add_option(flag, value, parameter.help);
    }
    void operator()(const accept::Parameter&, std::vector<accept::SamplingOptions::Bias>&) const {}
};

// Parameters that were given go into requests; the rest is the server's to decide.
struct GivenParameters {
    const std::map<std::string, CLI::Option*>& flags;
    Json& body;

    template <typename T>
    void operator()(const accept::Parameter& parameter, const T& value) const {
        if (flags.at(parameter.name)->count() > 0) body[parameter.name] = value;
    }
    void operator()(const accept::Parameter&,
                    const std::vector<accept::SamplingOptions::Bias>&) const {}
};

// The fields of every request beside its messages.
Json request_fields(const ChatOptions& options, const std::string& model) {
    Json body = {{"model", model}};
    if (options.max_tokens > 0) body["max_tokens"] = options.max_tokens;
    accept::SamplingOptions::parameters(GivenParameters{options.sampling_flags, body},
                                        options.sampling);
    return body;
}

void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

class Chat {
  public:
    Chat(ChatSession session, ChatHistory history)
        : session_(std::move(session)), history_(std::move(history)) {}

    Expected<void> run(const std::string& model) {
        if (interactive_)
            fmt::print(stderr, "{}. Ctrl-C stops an answer, Ctrl-D ends, /help lists the rest.\n",
                       printable(model));
        while (true) {
            const LineResult result = reader_.next("> ", history_.lines());
            if (std::holds_alternative<NoMoreLines>(result)) break;
            const auto* line = std::get_if<Line>(&result);
            if (line == nullptr || line->text.find_first_not_of(" \t\n") == std::string::npos)
                continue;
            if (!take(line->text)) break;
        }
        if (failed_ > 0) return fail(ErrorKind::io, "{} of the questions got no answer", failed_);
        return {};
    }

  private:
    // False: that was the last.
    bool take(const std::string& line) {
        remember(line);
        if (line == "/exit") return false;
        if (line == "/help") {
            fmt::print(stderr, "{}", kHelp);
        } else if (line == "/clear") {
            session_.clear();
            fmt::print(stderr, "[a new conversation]\n");
        } else if (line == "/regen") {
            if (const auto question = session_.take_back())
                ask(*question);
            else
                fmt::print(stderr, "[there is no answer yet]\n");
        } else if (line.starts_with('/') && line.find_first_of(" \n/", 1) == std::string::npos) {
            fmt::print(stderr, "[no such command; /help lists them]\n");
        } else {
            ask(line);
        }
        return true;
    }

    void remember(const std::string& line) {
        if (!interactive_) return;
        if (const auto kept = history_.add(line); !kept && !std::exchange(told_of_history_, true))
            fmt::print(stderr, "[history: {}]\n", kept.error().message);
    }

    void ask(const std::string& question) {
        const ChatAnswer answer =
            session_.ask(question, [](std::string_view piece) { print(printable(piece)); });
        if (answer.pieces > 0) print("\n");
        if (answer.failure) {
            ++failed_;
            fmt::print(stderr, "espalier: {}\n", printable(answer.failure->message));
            return;
        }
        fmt::print(stderr, "{}\n", closing_line(answer));
    }

    ChatSession session_;
    ChatHistory history_;
    LineReader reader_;
    const bool interactive_ = is_interactive();
    bool told_of_history_ = false;
    int failed_ = 0;
};

// Before the first question is written: a model without a template cannot chat.
Expected<void> check_template(client::HttpClient& client, const std::string& model) {
    const Json question = {{"messages", Json::array({{{"role", "user"}, {"content", "Hello"}}})}};
    const auto rendered = client::fetch(
        client, {.method = "POST", .path = "/apply-template", .body = question.dump()}, 1 << 20);
    if (!rendered)
        return fail(ErrorKind::unsupported,
                    "{}: {} (espalier generate continues a text without one)", model,
                    rendered.error().message);
    return {};
}

Expected<void> run(ChatOptions& options) {
    if (options.model.empty() && options.url.empty())
        return fail(ErrorKind::invalid,
                    "with whom? espalier chat MODEL, or --url http://127.0.0.1:8000");
    ESPALIER_ASSIGN_OR_RETURN(ChatHistory history, ChatHistory::open(options.history));
    client::ServerAddress address{.url = {}, .api_key = options.api_key};
    std::unique_ptr<RankWorld> ranks;
    std::unique_ptr<LocalServer> local;
    if (options.url.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(ranks, options.engine.start_ranks());
        ESPALIER_ASSIGN_OR_RETURN(
            local, LocalServer::open(options.model, options.engine, options.chat_template));
        address = local->address();
    } else {
        ESPALIER_ASSIGN_OR_RETURN(address.url, client::parse_url(options.url));
    }
    ESPALIER_ASSIGN_OR_RETURN(const auto client, client::HttpClient::open(address));
    std::string model = local ? std::string() : options.model;
    if (model.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(model, client::first_model(*client));
    }
    if (local) ESPALIER_RETURN_IF_ERROR(check_template(*client, options.model));
    Chat chat(ChatSession(*client, request_fields(options, model), options.system),
              std::move(history));
    return chat.run(model);
}

}  // namespace

Run add_chat(CLI::App& app) {
    const auto options = std::make_shared<ChatOptions>();
    CLI::App* command =
        app.add_subcommand("chat", "Talk with a model, or with a running server, in the terminal");
    command->footer("With --url the flags of the engine are the server's, and count for nothing.");
    command->add_option(
        "model", options->model,
        "Model directory, GGUF file, or ORG/NAME, which is fetched where the hub cache has it not; "
        "with --url, its name "
        "there (the server's first if not given)");
    command->add_option("--url", options->url,
                        "An OpenAI-compatible server, as http://127.0.0.1:8000");
    command->add_option("--api-key", options->api_key, "Sent as a bearer token")
        ->envname("OPENAI_API_KEY");
    command->add_option("--system", options->system, "System message");
    command->add_option("--chat-template", options->chat_template,
                        "File with the Jinja template, in place of the model's own");
    command->add_option("--history", options->history,
                        "File of what was asked before; '' keeps none (default: "
                        "~/.local/state/espalier/chat_history)");
    command
        ->add_option("-n,--max-tokens", options->max_tokens,
                     "Tokens of an answer at most; 0: as the context allows")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
        ->capture_default_str();
    accept::SamplingOptions::parameters(SamplingParameterFlags{*command, options->sampling_flags},
                                        options->sampling);
    options->engine.add_speculate_to(*command);
    options->engine.add_kept_to(*command);
    options->engine.add_to(*command,
                           {.rows = "0: one", .pages = "0: what the longest conversation needs"});
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
