// SPDX-License-Identifier: Apache-2.0
// espalier bench engine: many requests through one engine, as its clients see it, and where the
// engine's time goes. Every configuration (clients × drafts) runs the same requests; rounds
// interleave configurations, and medians over rounds are reported.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/engine_load.hpp"
#include "cli/running_engine.hpp"
#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

struct Options {
    std::string model;
    LoadOptions load;
    std::string arrival = "all";
    std::string prompt = "32-512";
    std::string output = "16-128";
    std::vector<std::int64_t> concurrency = {8};
    std::vector<std::string> speculate = {"ngram"};
    std::int64_t pages = 0;
    std::int64_t step_tokens = EngineSize().step_tokens;
    int rounds = 1;
    std::string trace;
    int threads = 0;
    std::string table = "md";
};

// Names and decimals of what is measured, in the order of Figures.
struct Column {
    const char* name;
    int decimals;
};
constexpr Column kColumns[] = {
    {"requests/s", 2},
    {"output tokens/s", 1},
    {"prompt tokens/s", 1},
    {"first token p50 ms", 1},
    {"first token p99 ms", 1},
    {"between tokens p50 ms", 2},
    {"between tokens p99 ms", 2},
    {"accepted drafts per step", 2},
    {"drafts verified", 0},
    {"% of these accepted", 1},
    {"steps", 0},
    {"requests per step", 1},
    {"roots per step", 1},
    {"drafts per step", 1},
    {"prompt tokens per step", 1},
    {"preemptions", 0},
    {"prompt tokens from the prefix index", 0},
    {"ms per step", 3},
    {"% of the time in the model", 1},
    {"% in sampling", 1},
    {"% in planning and drafting", 2},
    {"% outside model and sampling", 2},
};
constexpr std::size_t kRate = 1;  // output tokens/s
using Figures = std::vector<double>;

struct Configuration {
    std::int64_t clients = 1;
    std::string speculate;
    std::vector<Figures> rounds;
    std::string name() const {
        return fmt::format("{} client{} {}", clients, clients == 1 ? "" : "s", speculate);
    }
};

// Nearest rank; sorts.
double percentile(std::vector<double>& values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double rank = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Figures figures_of(LoadResult& result, std::size_t requests) {
    const engine::EngineTotals& sums = result.status.sums;
    const schedule::StepTokens& tokens = result.status.totals.tokens;
    const auto ratio = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
    const auto number = [](std::int64_t count) { return static_cast<double>(count); };
    const auto per_step = [&](std::int64_t count) {
        return ratio(number(count), number(result.status.steps));
    };
    const auto share = [&](schedule::Time time) {
        return 100 * ratio(number(time), number(sums.busy));
    };
    return {ratio(number(static_cast<std::int64_t>(requests)), result.seconds),
            ratio(number(result.tokens), result.seconds),
            ratio(number(result.prompt_tokens), result.seconds),
            1e3 * percentile(result.first_token, 0.5),
            1e3 * percentile(result.first_token, 0.99),
            1e3 * percentile(result.gaps, 0.5),
            1e3 * percentile(result.gaps, 0.99),
            ratio(number(sums.accepted), number(sums.drawing_steps)),
            number(tokens.drafts),
            100 * ratio(number(sums.accepted), number(tokens.drafts)),
            number(result.status.steps),
            per_step(sums.requests),
            per_step(tokens.roots),
            per_step(tokens.drafts),
            per_step(tokens.prompt_absorbed + tokens.prompt_decompressed),
            number(result.status.totals.preemptions),
            number(result.status.totals.hit_tokens),
            1e-6 * per_step(sums.busy),
            share(sums.model),
            share(sums.sampling),
            share(sums.planning),
            share(sums.busy - sums.model - sums.sampling)};
}

// Pages for the longest request of every client, so that nothing is preempted.
std::int64_t pages_for_clients(const std::vector<LoadRequest>& load, std::int64_t clients) {
    std::int64_t most = 0;
    for (const LoadRequest& one : load)
        most = std::max(
            most, cache::pages_for(std::ssize(one.request.prompt) + one.request.output.max_tokens));
    return most * clients;
}

class Bench {
  public:
    Bench(const Options& options, LoadedModel& loaded, const text::Tokenizer& tokenizer,
          std::vector<LoadRequest> load)
        : options_(options), loaded_(loaded), tokenizer_(tokenizer), load_(std::move(load)) {
        for (const std::int64_t clients : options.concurrency)
            for (const std::string& speculate : options.speculate)
                configurations_.push_back({clients, speculate, {}});
    }

    Expected<std::vector<Configuration>> run() {
        // Once without a watch: the first steps touch memory that later ones find.
        ESPALIER_RETURN_IF_ERROR(measure(configurations_.front(), warm_up(), ""));
        for (round_ = 0; round_ < options_.rounds; ++round_) {
            for (std::size_t i = 0; i < configurations_.size(); ++i) {
                // Every other round the other way round: what drifts does not favour anybody.
                Configuration& one =
                    configurations_[round_ % 2 == 0 ? i : configurations_.size() - 1 - i];
                ESPALIER_ASSIGN_OR_RETURN(LoadResult result, measure(one, load_, options_.trace));
                one.rounds.push_back(figures_of(result, load_.size()));
            }
        }
        return configurations_;
    }

  private:
    std::vector<LoadRequest> warm_up() const {
        LoadRequest one = load_.front();
        one.request.output.max_tokens = std::min<std::int64_t>(one.request.output.max_tokens, 8);
        return {one};
    }

    Expected<LoadResult> measure(const Configuration& one, const std::vector<LoadRequest>& load,
                                 const std::string& trace_path) {
        EngineSize size;
        size.rows = one.clients;
        size.pages = options_.pages > 0 ? options_.pages : pages_for_clients(load_, one.clients);
        size.waiting = std::max(size.waiting, one.clients);
        ESPALIER_ASSIGN_OR_RETURN(TraceFile trace, TraceFile::open(trace_path, options_.model,
                                                                   loaded_, size, one.speculate));
        ESPALIER_ASSIGN_OR_RETURN(const auto engine, start_engine(loaded_, tokenizer_, size,
                                                                  one.speculate, trace.observer()));
        StatusLine status;
        auto result = run_load(*engine, load, one.clients, [&](std::int64_t done) {
            status.update("round {} of {}, {}: {} of {} requests", round_ + 1, options_.rounds,
                          one.name(), done, load.size());
        });
        engine->stop();
        ESPALIER_RETURN_IF_ERROR(trace.finish());
        return result;
    }

    const Options& options_;
    LoadedModel& loaded_;
    const text::Tokenizer& tokenizer_;
    const std::vector<LoadRequest> load_;
    std::vector<Configuration> configurations_;
    int round_ = 0;
};

// Against the same clients without drafts: the median over rounds of the ratio within a round.
std::optional<double> speed_up(const Configuration& one, const std::vector<Configuration>& all) {
    if (one.speculate == "off") return std::nullopt;
    for (const Configuration& other : all) {
        if (other.speculate != "off" || other.clients != one.clients) continue;
        std::vector<double> ratios;
        for (std::size_t round = 0; round < one.rounds.size(); ++round)
            ratios.push_back(one.rounds[round][kRate] / other.rounds[round][kRate]);
        return median(ratios);
    }
    return std::nullopt;
}

Table table_of(const std::vector<Configuration>& configurations) {
    Table table;
    table.columns = {"configuration"};
    for (const Column& column : kColumns) table.columns.emplace_back(column.name);
    table.columns.emplace_back("output tokens/s against off");
    for (const Configuration& one : configurations) {
        std::vector<std::string> row = {one.name()};
        for (std::size_t i = 0; i < std::size(kColumns); ++i) {
            std::vector<double> values;
            for (const Figures& figures : one.rounds) values.push_back(figures[i]);
            row.push_back(fmt::format("{:.{}f}", median(values), kColumns[i].decimals));
        }
        const auto ratio = speed_up(one, configurations);
        row.push_back(ratio ? fmt::format("{:.3f}", *ratio) : "-");
        table.rows.push_back(std::move(row));
    }
    return table;
}

Expected<double> parse_arrival(const std::string& text) {
    if (text == "all") return 0.0;
    double rate = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
    if (error != std::errc() || end != text.data() + text.size() || !(rate > 0) || rate > 1e6)
        return fail(ErrorKind::invalid, "--arrival {}: neither requests per second nor all", text);
    return rate;
}

Expected<void> run(Options options) {
    ESPALIER_ASSIGN_OR_RETURN(const TableFormat format, parse_table_format(options.table));
    ESPALIER_ASSIGN_OR_RETURN(options.load.arrival_rate, parse_arrival(options.arrival));
    ESPALIER_ASSIGN_OR_RETURN(options.load.prompt, parse_range("--prompt", options.prompt));
    ESPALIER_ASSIGN_OR_RETURN(options.load.output, parse_range("--output", options.output));
    const std::size_t runs = options.concurrency.size() * options.speculate.size() *
                             static_cast<std::size_t>(options.rounds);
    if (!options.trace.empty() && runs > 1)
        return fail(ErrorKind::invalid,
                    "--trace writes one run, but --concurrency, --speculate and --rounds make {}",
                    runs);
    ESPALIER_ASSIGN_OR_RETURN(const auto directory, checkpoint::resolve_model_path(options.model));
    ESPALIER_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::load(directory));
    EngineSize largest;
    largest.step_tokens = options.step_tokens;
    largest.rows = *std::max_element(options.concurrency.begin(), options.concurrency.end());
    ESPALIER_ASSIGN_OR_RETURN(
        LoadedModel loaded, load_model(directory.string(), options.threads, model_limits(largest)));
    const checkpoint::ModelConfig& config = loaded.model->config();
    ESPALIER_ASSIGN_OR_RETURN(
        std::vector<LoadRequest> load,
        make_load(options.load, tokenizer, config.vocab_size, loaded.model->limits().max_kv_len));
    std::int64_t prompt_tokens = 0, output_tokens = 0;
    for (const LoadRequest& one : load) {
        prompt_tokens += std::ssize(one.request.prompt);
        output_tokens += one.request.output.max_tokens;
    }
    fmt::print(stderr,
               "{}, {} threads, weights {}: {} requests, {} prompt tokens, {} output tokens; "
               "medians of {} rounds\n",
               loaded.backend->name(), loaded.device->workers(),
               name_of(loaded.model->weights().format.code), load.size(), prompt_tokens,
               output_tokens, options.rounds);
    ESPALIER_ASSIGN_OR_RETURN(const auto measured,
                              Bench(options, loaded, tokenizer, std::move(load)).run());
    const Table table = table_of(measured);
    fmt::print("{}", (format == TableFormat::markdown ? table.transposed() : table).text(format));
    return {};
}

void add_load_flags(CLI::App& command, Options& options) {
    const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 20);
    command.add_option("--requests", options.load.requests, "How many")
        ->check(count)
        ->capture_default_str();
    command
        .add_option("--arrival", options.arrival,
                    "Requests per second, at random moments (Poisson), or all: as soon as a client "
                    "is free")
        ->capture_default_str();
    CLI::Option* prompt =
        command
            .add_option("--prompt", options.prompt,
                        "Tokens, or LOW-HIGH: log-uniform, every doubling as likely as another")
            ->capture_default_str();
    CLI::Option* output =
        command.add_option("--output", options.output, "Tokens, or LOW-HIGH in the same way")
            ->capture_default_str();
    command
        .add_option("--shared", options.load.shared,
                    "Tokens that all prompts have in common at their beginning")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
        ->capture_default_str();
    CLI::Option* text = command.add_option(
        "--text", options.load.text, "File that prompts are cut from; otherwise random tokens");
    command
        .add_option("--completions", options.load.completions,
                    "JSON lines with prompt and completion: outputs are these completions")
        ->excludes(prompt)
        ->excludes(output)
        ->excludes(text);
    command.add_option("--temperature", options.load.temperature, "Of all requests")
        ->capture_default_str();
    command.add_option("--seed", options.load.seed, "Other prompts, lengths, arrivals and noise")
        ->capture_default_str();
}

}  // namespace

Run add_bench_engine(CLI::App& bench) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = bench.add_subcommand(
        "engine", "Throughput and latency of many requests, with mixed prompts");
    command
        ->add_option("model", options->model, "Model directory or ORG/NAME in the local hub cache")
        ->required();
    add_load_flags(*command, *options);
    command
        ->add_option("--concurrency", options->concurrency,
                     "Clients; each sends its next request when its last is finished. A list "
                     "measures each")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    command
        ->add_option("--speculate", options->speculate,
                     std::string(kSpeculateHelp) + "; a list compares them")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember(kSpeculateNames))
        ->capture_default_str();
    command
        ->add_option("--pages", options->pages,
                     "Cache size in pages of 64 tokens; 0: the longest request for each client")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
        ->capture_default_str();
    command
        ->add_option("--step-tokens", options->step_tokens,
                     "Tokens of a step at most: roots, drafts and prompts; one prompt quantum of "
                     "512 at least")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
        ->capture_default_str();
    command
        ->add_option("-r,--rounds", options->rounds,
                     "Times that everything is measured, interleaved; medians are reported")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command->add_option("--trace", options->trace, kTraceHelp);
    command->add_option("--threads", options->threads, "0: OMP_NUM_THREADS or one per core")
        ->capture_default_str();
    command->add_option("-o,--output-format", options->table, "md, csv or json")
        ->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
