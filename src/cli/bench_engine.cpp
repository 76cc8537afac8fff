// SPDX-License-Identifier: Apache-2.0
// espalier bench engine: many requests through one engine, as its clients see it, and where the
// engine's time goes. Every configuration (clients × drafts, with and without the grammar where one
// is given) runs the same requests; rounds interleave configurations, and medians over rounds are
// reported.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/draft_setting.hpp"
#include "cli/engine_figures.hpp"
#include "cli/engine_flags.hpp"
#include "cli/engine_load.hpp"
#include "cli/grammar_flags.hpp"
#include "cli/synthetic_model.hpp"
#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

struct BenchEngineOptions {
    BenchedModel model;
    LoadOptions load;
    std::string arrival = "all";
    std::string prompt = "32-512";
    std::string output = "16-128";
    std::vector<std::int64_t> concurrency = {8};
    std::vector<std::string> speculate = {"auto"};
    GrammarFlags grammar;
    EngineFlags engine;
    int rounds = 1;
    std::string table = "md";
};

struct Configuration {
    std::int64_t clients = 1;
    std::string speculate;
    DraftSetting drafts;                                      // what that says
    std::shared_ptr<const grammar::CompiledGrammar> grammar;  // of every request; null: free texts
    std::vector<LoadResult> rounds;
    std::string name() const {
        return fmt::format("{} client{} {}{}{}", clients, clients == 1 ? "" : "s", speculate,
                           grammar ? ", " : "",
                           grammar ? grammar::name(grammar->specification().kind) : "");
    }
};

// The model's files without a draft that this way of drafting has no use for: another one has.
runtime::ModelFiles files_for(const DraftSetting& setting, runtime::ModelFiles files) {
    const auto names = [&](const char* name) {
        return std::ranges::find(setting.drafters, name) != setting.drafters.end();
    };
    if (!names("eagle3") && !names("auto")) files.draft = nullptr;
    return files;
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
    Bench(const BenchEngineOptions& options, const runtime::ModelFiles& files,
          runtime::LoadedModel& loaded, const runtime::SizeFacts& facts,
          std::vector<LoadRequest> load, std::shared_ptr<const grammar::CompiledGrammar> grammar)
        : options_(options), files_(files), loaded_(loaded), facts_(facts), load_(std::move(load)) {
        for (const std::int64_t clients : options.concurrency)
            for (const std::string& speculate : options.speculate) {
                const DraftSetting drafts = *DraftSetting::parse(speculate);
                configurations_.push_back({clients, speculate, drafts, nullptr, {}});
                if (grammar) configurations_.push_back({clients, speculate, drafts, grammar, {}});
            }
    }

    Expected<std::vector<Configuration>> run() {
        // Once without a watch: the first steps touch memory that later ones find.
        ESPALIER_RETURN_IF_ERROR(measure(configurations_.front(), warm_up(), ""));
        for (round_ = 0; round_ < options_.rounds; ++round_) {
            for (std::size_t i = 0; i < configurations_.size(); ++i) {
                // Every other round the other way round: drift favours no configuration.
                Configuration& one =
                    configurations_[round_ % 2 == 0 ? i : configurations_.size() - 1 - i];
                ESPALIER_ASSIGN_OR_RETURN(LoadResult result,
                                          measure(one, load_, options_.engine.engine.trace));
                one.rounds.push_back(std::move(result));
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

    Expected<LoadResult> measure(const Configuration& one, std::vector<LoadRequest> load,
                                 const std::string& trace) {
        for (LoadRequest& request : load) {
            one.drafts.apply_to(request.request);
            request.request.grammar = one.grammar;
            request.request.output.ignore_eos = one.grammar == nullptr;
        }
        runtime::EngineOptions engine = options_.engine.engine;
        engine.speculate = one.drafts.drafters;
        engine.coupling = one.drafts.coupling;
        engine.trace = trace;
        if (engine.sizes.rows == 0) engine.sizes.rows = one.clients;
        if (engine.sizes.pages == 0) engine.sizes.pages = pages_for_clients(load_, one.clients);
        ESPALIER_ASSIGN_OR_RETURN(const EngineSizes sizes,
                                  runtime::derive_sizes(engine.sizes, facts_));
        ESPALIER_ASSIGN_OR_RETURN(
            runtime::RunningEngine running,
            runtime::RunningEngine::start(files_for(one.drafts, files_), loaded_, sizes, engine));
        StatusLine status;
        auto result = run_load(running.engine(), load, one.clients, [&](std::int64_t done) {
            status.update("round {} of {}, {}: {} of {} requests", round_ + 1, options_.rounds,
                          one.name(), done, load.size());
        });
        ESPALIER_RETURN_IF_ERROR(stop_engine(running));
        return result;
    }

    const BenchEngineOptions& options_;
    const runtime::ModelFiles& files_;
    runtime::LoadedModel& loaded_;
    const runtime::SizeFacts facts_;
    const std::vector<LoadRequest> load_;
    std::vector<Configuration> configurations_;
    int round_ = 0;
};

// The median over rounds of the ratio of output rates within a round.
double rate_ratio(const Configuration& one, const Configuration& other) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < one.rounds.size(); ++round)
        ratios.push_back(output_rate(one.rounds[round]) / output_rate(other.rounds[round]));
    return median(ratios);
}

// Against the same clients and texts without drafts.
std::optional<double> against_off(const Configuration& one, const std::vector<Configuration>& all) {
    for (const Configuration& other : all)
        if (one.speculate != "off" && other.speculate == "off" && other.clients == one.clients &&
            other.grammar == one.grammar)
            return rate_ratio(one, other);
    return std::nullopt;
}

// Against the same clients and drafts without the grammar.
std::optional<double> against_free(const Configuration& one,
                                   const std::vector<Configuration>& all) {
    for (const Configuration& other : all)
        if (one.grammar && !other.grammar && other.clients == one.clients &&
            other.speculate == one.speculate)
            return rate_ratio(one, other);
    return std::nullopt;
}

Table table_of(const std::vector<Configuration>& configurations) {
    Table table;
    table.columns = {"configuration"};
    for (const Figure& figure : engine_figures()) table.columns.emplace_back(figure.name);
    const bool grammar =
        std::ranges::any_of(configurations, [](const auto& one) { return one.grammar != nullptr; });
    table.columns.emplace_back("output tokens/s against off");
    if (grammar) table.columns.emplace_back("output tokens/s against free text");
    for (const Configuration& one : configurations) {
        std::vector<std::string> row = {one.name()};
        for (const Figure& figure : engine_figures()) {
            std::vector<double> values;
            for (const LoadResult& result : one.rounds) values.push_back(figure.of(result));
            row.push_back(fmt::format("{:.{}f}", median(values), figure.decimals));
        }
        const auto written = [](std::optional<double> ratio) {
            return ratio ? fmt::format("{:.3f}", *ratio) : "-";
        };
        row.push_back(written(against_off(one, configurations)));
        if (grammar) row.push_back(written(against_free(one, configurations)));
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

Expected<void> run(BenchEngineOptions options) {
    ESPALIER_ASSIGN_OR_RETURN(const TableFormat format, parse_table_format(options.table));
    ESPALIER_ASSIGN_OR_RETURN(options.load.arrival_rate, parse_arrival(options.arrival));
    ESPALIER_ASSIGN_OR_RETURN(options.load.prompt, parse_range("--prompt", options.prompt));
    ESPALIER_ASSIGN_OR_RETURN(options.load.output, parse_range("--output", options.output));
    ESPALIER_ASSIGN_OR_RETURN(const auto wanted, options.grammar.specification());
    const std::size_t runs = options.concurrency.size() * options.speculate.size() *
                             static_cast<std::size_t>(options.rounds) * (wanted ? 2 : 1);
    if (!options.engine.engine.trace.empty() && runs > 1)
        return fail(
            ErrorKind::invalid,
            "--trace writes one run, but --concurrency, --speculate, --rounds and a grammar "
            "make {}",
            runs);
    ESPALIER_ASSIGN_OR_RETURN(const auto ranks, options.engine.start_ranks());
    if (ranks->count() > 1 && !options.model.synthetic.empty())
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{}, but --synthetic makes a model for one process; write it with: "
                          "espalier make-model",
                          ranks->count());
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              options.model.open(options.engine.load.device, options.engine.draft));
    ESPALIER_ASSIGN_OR_RETURN(auto grammar, options.grammar.compiled(files));
    runtime::DrafterChoice drafters;  // of all configurations
    for (const std::string& speculate : options.speculate) {
        ESPALIER_ASSIGN_OR_RETURN(const DraftSetting setting, DraftSetting::parse(speculate));
        ESPALIER_ASSIGN_OR_RETURN(
            const runtime::DrafterChoice one,
            runtime::choose_drafters(setting.drafters, files_for(setting, files)));
        drafters.mtp = drafters.mtp || one.mtp;
        drafters.eagle3 = drafters.eagle3 || one.eagle3;
    }
    ESPALIER_ASSIGN_OR_RETURN(const runtime::SizeFacts facts,
                              runtime::size_facts(files, drafters, options.engine.load));
    runtime::SizeOptions largest = options.engine.engine.sizes;
    ESPALIER_ASSIGN_OR_RETURN(
        std::vector<LoadRequest> load,
        make_load(options.load, *files.tokenizer, files.checkpoint->config().vocab_size,
                  largest.max_model_len > 0 ? largest.max_model_len : facts.context));
    // The model is made for the largest of the engines that it is to carry.
    const std::int64_t clients = std::ranges::max(options.concurrency);
    if (largest.rows == 0) largest.rows = clients;
    if (largest.pages == 0) largest.pages = pages_for_clients(load, clients);
    ESPALIER_ASSIGN_OR_RETURN(const EngineSizes sizes, runtime::derive_sizes(largest, facts));
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::LoadedModel loaded,
        load_model(files.checkpoint, sizes,
                   runtime::with_drafters(options.engine.load, drafters, files)));
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
    ESPALIER_ASSIGN_OR_RETURN(
        const auto measured,
        Bench(options, files, loaded, facts, std::move(load), std::move(grammar)).run());
    const Table table = table_of(measured);
    fmt::print("{}", (format == TableFormat::markdown ? table.transposed() : table).text(format));
    return {};
}

void add_load_flags(CLI::App& command, BenchEngineOptions& options) {
    const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 20);
    command.add_option("--requests", options.load.requests, "Number of requests")
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
    CLI::Option* prompts =
        command.add_option("--prompts", options.load.prompts, "JSON lines with a prompt each")
            ->excludes(prompt)
            ->excludes(text);
    command
        .add_option("--completions", options.load.completions,
                    "JSON lines with prompt and completion: outputs are these completions")
        ->excludes(prompt)
        ->excludes(output)
        ->excludes(prompts)
        ->excludes(text);
    command
        .add_option("--temperature", options.load.temperature,
                    "Sampling temperature of every request")
        ->capture_default_str();
    command.add_option("--seed", options.load.seed, "Seed of prompts, lengths, arrivals and noise")
        ->capture_default_str();
}

}  // namespace

Run add_bench_engine(CLI::App& bench) {
    const auto options = std::make_shared<BenchEngineOptions>();
    CLI::App* command = bench.add_subcommand(
        "engine", "Throughput and latency of many requests, with mixed prompts");
    options->model.add_to(*command);
    add_load_flags(*command, *options);
    options->grammar.add_to(*command);
    command
        ->add_option("--concurrency", options->concurrency,
                     "Clients, each with one request at a time; a list measures each")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    command
        ->add_option("--speculate", options->speculate,
                     std::string(EngineFlags::kSpeculateHelp) +
                         "; several drafters at once are joined by +, a list compares them. "
                         ":DEPTH[xWIDTH][/NODES] prescribes trees, @plain or @coupled how draft "
                         "models draw: mtp+ngram, eagle3:4x4/8@plain")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str();
    options->engine.add_to(*command, {.rows = "0: one for each client",
                                      .pages = "0: the longest request for each client"});
    command->add_option("-r,--rounds", options->rounds, "Interleaved rounds; medians are reported")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command->add_option("-o,--output-format", options->table, "md, csv or json")
        ->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
