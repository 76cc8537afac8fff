// SPDX-License-Identifier: Apache-2.0
// espalier bench serve: a load for any OpenAI-compatible server, and what its clients saw.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/mapped_file.hpp"
#include "cli/command.hpp"
#include "cli/safe_text.hpp"
#include "cli/terminal.hpp"
#include "client/models.hpp"
#include "load/prompts.hpp"
#include "load/report.hpp"
#include "load/run.hpp"
#include "server/server.hpp"

namespace espalier::cli {
namespace {

constexpr std::size_t kMaxTextBytes = 256u << 20;
constexpr std::size_t kMaxMetricsBytes = 16u << 20;

struct BenchServeOptions {
    load::LoadOptions load;
    client::ServerAddress server{.url = {}, .api_key = {}, .timeout_seconds = 120};
    std::string url = "http://127.0.0.1:8000";
    std::string backend = "openai";
    std::string text, prompts;  // files
    std::string dataset = "random", dataset_path;
    std::vector<std::string> goodput;
    std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};
    std::vector<double> percentiles = {99};
    bool save_result = false, save_detailed = false;
    std::string result_dir = ".";
    std::string result_filename, html;
};

std::string date_now() {
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    gmtime_r(&now, &utc);
    char buffer[32];
    return {buffer, std::strftime(buffer, sizeof buffer, "%Y%m%d-%H%M%S", &utc)};
}

// Nothing where the server has no /metrics, or no speculation in it.
std::optional<load::SpeculationCounts> speculation_now(client::HttpClient& client) {
    const auto metrics =
        client::fetch(client, {.method = "GET", .path = "/metrics"}, kMaxMetricsBytes);
    return metrics ? load::speculation_of_metrics(*metrics) : std::nullopt;
}

Expected<void> read_prompts(const BenchServeOptions& options, load::LoadOptions& load) {
    load.api = options.backend == "openai-chat" ? load::Api::chat : load::Api::completions;
    const bool is_random = options.dataset == "random";
    if (is_random != options.dataset_path.empty())
        return fail_field(ErrorKind::invalid, "dataset_path", "{} {}", options.dataset,
                          is_random ? "prompts come from no file" : "needs a file");
    const std::string text = options.dataset == "sonnet" ? options.dataset_path : options.text;
    const std::string prompts =
        options.dataset == "custom" ? options.dataset_path : options.prompts;
    if (!text.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(load.text, read_text_file(text, kMaxTextBytes));
        if (load.text.empty()) return fail(ErrorKind::invalid, "{}: empty", text);
    }
    if (!prompts.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(const std::string lines, read_text_file(prompts, kMaxTextBytes));
        ESPALIER_ASSIGN_OR_RETURN(load.prompts, load::parse_prompts(lines, prompts));
    }
    if (options.dataset == "sharegpt") {
        ESPALIER_ASSIGN_OR_RETURN(const std::string list,
                                  read_text_file(options.dataset_path, kMaxTextBytes));
        ESPALIER_ASSIGN_OR_RETURN(load.prompts,
                                  load::parse_conversations(list, options.dataset_path));
    }
    return load::check_prompts(load);
}

Expected<void> write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) return fail(ErrorKind::io, "{}: cannot be written", path);
    return {};
}

// vLLM's name for the file: backend, rate, model and date.
std::string result_path(const BenchServeOptions& options, const load::Report& report) {
    std::string name = options.result_filename;
    if (name.empty()) {
        const std::string model = std::filesystem::path(report.options.model).filename().string();
        name = fmt::format("{}-{}qps-{}-{}.json", options.backend, report.options.rate,
                           safe_file_name(model), report.date);
    }
    return (std::filesystem::path(options.result_dir) / name).string();
}

Expected<void> write_results(const BenchServeOptions& options, const load::Report& report) {
    using Json = nlohmann::ordered_json;
    if (options.save_result) {
        const std::string path = result_path(options, report);
        const Json json = load::report_json(report, options.save_detailed);
        ESPALIER_RETURN_IF_ERROR(
            write_file(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
        fmt::print(stderr, "the figures are in {}\n", path);
    }
    if (!options.html.empty()) {
        ESPALIER_RETURN_IF_ERROR(write_file(options.html, load::report_html(report)));
        fmt::print(stderr, "the plots are in {}\n", options.html);
    }
    return {};
}

load::RunResult run_with_progress(client::HttpClient& client, const load::LoadOptions& load) {
    StatusLine status;
    return load::run_load(client, load, [&](const load::Progress& now) {
        const double rate = now.seconds > 0 ? static_cast<double>(now.pieces) / now.seconds : 0.0;
        status.update("{:.0f} s · {} of {} requests done, {} under way{} · {:.0f} pieces/s",
                      now.seconds, now.ended, load.requests, now.sent - now.ended,
                      now.failed > 0 ? fmt::format(", {} failed", now.failed) : "", rate);
    });
}

// Notes that a reader of the block must know besides.
void print_notes(const load::Report& report) {
    fmt::print(stderr, "{}", printable(load::failures_text(report)));
    const load::Figures figures = load::figures_of(report.records, report.goodput);
    if (figures.guessed > 0)
        fmt::print(stderr, "{} answers had no usage: their tokens are counted as pieces of text\n",
                   figures.guessed);
}

Expected<void> check_end(const load::RunResult& run, const load::Report& report) {
    const std::size_t sent = report.records.size();
    switch (run.end) {
        case load::RunEnd::interrupted:
            return fail(ErrorKind::io,
                        "interrupted after {} of {} requests; the figures are theirs", sent,
                        report.options.requests);
        case load::RunEnd::server_gone:
            return fail(ErrorKind::io,
                        "{} requests in a row got no answer; {} of {} were sent, the figures are "
                        "theirs",
                        load::kGoneAfter, sent, report.options.requests);
        case load::RunEnd::complete:
            break;
    }
    for (const load::RequestRecord& record : report.records)
        if (!record.failure) return {};
    return fail(ErrorKind::io, "no request succeeded");
}

Expected<void> run(const BenchServeOptions& options) {
    client::ServerAddress address = options.server;
    ESPALIER_ASSIGN_OR_RETURN(address.url, client::parse_url(options.url));
    load::Report report{.options = options.load, .url = options.url, .date = date_now()};
    report.metrics = options.metrics;
    report.percentiles = options.percentiles;
    ESPALIER_ASSIGN_OR_RETURN(report.goodput, load::parse_goodput(options.goodput));
    ESPALIER_RETURN_IF_ERROR(read_prompts(options, report.options));
    server::raise_file_limit();  // a connection is an open file
    ESPALIER_ASSIGN_OR_RETURN(const auto client, client::HttpClient::open(address));
    if (report.options.model.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(report.options.model, client::first_model(*client));
    }
    const auto before = speculation_now(*client);
    load::RunResult result = run_with_progress(*client, report.options);
    report.seconds = result.seconds;
    report.records = std::move(result.records);
    report.speculation = load::speculation_of_run(before, speculation_now(*client), report.records);
    fmt::print("{}", load::report_text(report));
    std::fflush(stdout);
    print_notes(report);
    ESPALIER_RETURN_IF_ERROR(write_results(options, report));
    return check_end(result, report);
}

void add_load_flags(CLI::App& command, BenchServeOptions& options) {
    load::LoadOptions& load = options.load;
    const CLI::Range count(std::int64_t{1}, std::int64_t{1'000'000});
    command.add_option("--num-prompts", load.requests, "Requests in all")
        ->capture_default_str()
        ->check(count);
    command
        .add_option("--request-rate", load.rate,
                    "Requests per second; inf: all at once, or as --max-concurrency lets them")
        ->capture_default_str()
        ->check(CLI::Range(1e-3, std::numeric_limits<double>::infinity()));
    command
        .add_option(
            "--burstiness", load.burstiness,
            "Shape of the intervals (gamma): 1 is Poisson, less comes in bursts, more evenly")
        ->capture_default_str()
        ->check(CLI::Range(0.001, 1e6));
    command.add_option("--max-concurrency", load.concurrency, "Requests under way at most; 0: any")
        ->capture_default_str()
        ->check(CLI::Range(std::int64_t{0}, load::kMaxConcurrency));
    CLI::Option* text = command.add_option("--text", options.text,
                                           "File that prompts are cut from; otherwise random ids");
    CLI::Option* prompts =
        command.add_option("--prompts", options.prompts, "JSON lines with a prompt each, in turn")
            ->excludes(text);
    command
        .add_option("--dataset-name", options.dataset,
                    "vLLM's names: random ids; of --dataset-path sonnet (as --text), custom (as "
                    "--prompts) or sharegpt (first messages of conversations)")
        ->check(CLI::IsMember({"random", "sonnet", "custom", "sharegpt"}))
        ->capture_default_str()
        ->excludes(text)
        ->excludes(prompts);
    command.add_option("--dataset-path", options.dataset_path, "File of --dataset-name");
    command
        .add_option("--random-input-len", load.input_tokens,
                    "Tokens of a prompt; of a text, four bytes for each")
        ->capture_default_str()
        ->check(count);
    command.add_option("--random-output-len", load.output_tokens, "Tokens asked for")
        ->capture_default_str()
        ->check(count);
    command
        .add_option("--vocabulary", load.vocabulary,
                    fmt::format("Random ids are {} and above, below this", load::kFirstId))
        ->capture_default_str()
        ->check(CLI::Range(load::kFirstId + 1, std::int64_t{1} << 24));
    command.add_option("--temperature", load.temperature, "Sampling temperature of every request")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 100.0));
    command.add_flag("--ignore-eos", load.ignore_eos, "No end before all tokens are there");
    command.add_option("--seed", load.seed, "Seed of prompts, arrivals and noise")
        ->capture_default_str();
}

void add_report_flags(CLI::App& command, BenchServeOptions& options) {
    command
        .add_option("--goodput", options.goodput,
                    "Limits of a good request: ttft:MS tpot:MS e2el:MS")
        ->expected(1, 3);
    command.add_option("--percentile-metrics", options.metrics, "Latencies that are reported")
        ->delimiter(',')
        ->check(CLI::IsMember({"ttft", "tpot", "itl", "e2el"}))
        ->capture_default_str();
    command.add_option("--metric-percentiles", options.percentiles, "Percentiles of each latency")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    CLI::Option* save =
        command.add_flag("--save-result", options.save_result, "JSON file of the figures");
    command.add_flag("--save-detailed", options.save_detailed, "Times of every request too")
        ->needs(save);
    command.add_option("--result-dir", options.result_dir, "Directory of the results")
        ->capture_default_str()
        ->needs(save);
    command
        .add_option("--result-filename", options.result_filename,
                    "File name; default: backend, rate, model and date")
        ->needs(save);
    command.add_option("--html", options.html, "HTML page with plots");
}

}  // namespace

Run add_bench_serve(CLI::App& bench) {
    CLI::App* command = bench.add_subcommand(
        "serve", "Throughput and latency of a running server, as clients see it");
    const auto options = std::make_shared<BenchServeOptions>();
    command->add_option("--base-url", options->url, "An OpenAI-compatible server")
        ->capture_default_str();
    command
        ->add_option("--backend", options->backend,
                     "openai: /v1/completions; openai-chat: /v1/chat/completions")
        ->check(CLI::IsMember({"openai", "openai-chat"}))
        ->capture_default_str();
    command->add_option("--api-key", options->server.api_key, "Sent as a bearer token")
        ->envname("OPENAI_API_KEY");
    command->add_option("--model", options->load.model, "Model name; default: the server's first");
    command
        ->add_option("--timeout", options->server.timeout_seconds,
                     "Seconds without a new token after which a request has failed")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 1e6));
    add_load_flags(*command, *options);
    add_report_flags(*command, *options);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
