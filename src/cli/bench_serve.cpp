// SPDX-License-Identifier: Apache-2.0
// espalier bench serve: a load for any OpenAI-compatible server, and what its clients saw.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>

#include "base/mapped_file.hpp"
#include "cli/command.hpp"
#include "cli/serve_report.hpp"
#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

struct Options {
    ServeLoad load;
    std::string url = "http://127.0.0.1:8000";
    std::string text;
    std::vector<std::string> goodput;
    std::string result;
    bool detailed = false;
};

std::string date_now() {
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    gmtime_r(&now, &utc);
    char buffer[32];
    return {buffer, std::strftime(buffer, sizeof buffer, "%Y%m%d-%H%M%S", &utc)};
}

// Nothing where the server has no /metrics, or no speculation in it.
std::optional<SpeculationCounts> speculation_now(const ServeLoad& load) {
    auto answer = HttpAnswer::of(
        load.url, {.method = "GET", .path = "/metrics", .body = {}, .api_key = load.api_key});
    if (!answer || answer->status() != 200) return std::nullopt;
    const auto text = answer->read_all();
    if (!text) return std::nullopt;
    const auto drafts = metric_of(*text, "spec_decode_num_drafts_total");
    const auto tokens = metric_of(*text, "spec_decode_num_draft_tokens_total");
    const auto accepted = metric_of(*text, "spec_decode_num_accepted_tokens_total");
    if (!drafts || !tokens || !accepted) return std::nullopt;
    return SpeculationCounts{
        .drafts = *drafts, .draft_tokens = *tokens, .accepted_tokens = *accepted};
}

Expected<void> run(const Options& options) {
    ServeReport report{.load = options.load, .date = date_now()};
    ESPALIER_ASSIGN_OR_RETURN(report.load.url, parse_url(options.url));
    ESPALIER_ASSIGN_OR_RETURN(report.goodput, parse_goodput(options.goodput));
    if (!options.text.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(report.load.text, read_text_file(options.text, 256u << 20));
        if (report.load.text.empty()) return fail(ErrorKind::invalid, "{}: empty", options.text);
    }
    const auto before = speculation_now(report.load);
    {
        StatusLine status;
        ESPALIER_ASSIGN_OR_RETURN(report.run, run_serve_load(report.load, [&](std::int64_t done) {
                                      status.update("{} of {} requests", done,
                                                    report.load.requests);
                                  }));
    }
    if (const auto after = speculation_now(report.load); before && after)
        report.speculation = {.drafts = after->drafts - before->drafts,
                              .draft_tokens = after->draft_tokens - before->draft_tokens,
                              .accepted_tokens = after->accepted_tokens - before->accepted_tokens};
    fmt::print("{}", report.text());
    for (const ServeOutcome& outcome : report.run.outcomes) {
        if (outcome.error.empty()) continue;
        fmt::print(stderr, "the first error: {}\n", outcome.error);
        break;
    }
    if (options.result.empty()) return {};
    std::ofstream file(options.result);
    file << report.json(options.detailed).dump(2) << '\n';
    file.close();
    if (!file) return fail(ErrorKind::io, "{}: cannot be written", options.result);
    return {};
}

}  // namespace

Run add_bench_serve(CLI::App& bench) {
    CLI::App* serve = bench.add_subcommand("serve", "Send completions to a running server");
    const auto options = std::make_shared<Options>();
    ServeLoad& load = options->load;
    serve->add_option("--base-url", options->url, "Address of an OpenAI-compatible server")
        ->capture_default_str();
    serve->add_option("--api-key", load.api_key, "Sent as a bearer token");
    serve->add_option("--model", load.model, "Name of the model (default: the server's first)");
    serve->add_option("--num-prompts", load.requests, "Requests in all")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000));
    serve->add_option("--request-rate", load.rate, "Requests per second; 0 sends all at once")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e6));
    serve
        ->add_option("--burstiness", load.burstiness,
                     "1 is Poisson, less comes in bursts, more comes evenly")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 1e3));
    serve->add_option("--max-concurrency", load.concurrency, "Requests under way at most; 0: any")
        ->capture_default_str()
        ->check(CLI::Range(std::int64_t{0}, kMaxConcurrency));
    serve->add_option("--text", options->text,
                      "File that prompts are cut from (default: random ids)");
    serve
        ->add_option("--random-input-len", load.input_tokens,
                     "Tokens of a prompt; of a text about four letters each")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000));
    serve->add_option("--random-output-len", load.output_tokens, "Tokens asked for")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000));
    serve
        ->add_option("--vocabulary", load.vocabulary, "Random prompts have ids from 100 below this")
        ->capture_default_str()
        ->check(CLI::Range(101, 1 << 20));
    serve->add_option("--temperature", load.temperature, "Of every request")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 100.0));
    serve->add_flag("--ignore-eos", load.ignore_eos, "Go on until all tokens are there");
    serve->add_option("--seed", load.seed, "Of prompts and arrivals")->capture_default_str();
    serve->add_option("--goodput", options->goodput,
                      "What a request must keep to be good: ttft:MS tpot:MS e2el:MS");
    serve->add_option("--save-result", options->result, "File for the figures as JSON");
    serve->add_flag("--save-detailed", options->detailed, "Times of every request in it too");
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
