// SPDX-License-Identifier: Apache-2.0
// docs/metrics.md, made of what a server with everything would tell.
#include <fmt/format.h>

#include <map>
#include <regex>
#include <sstream>
#include <vector>

#include "server/metrics.hpp"

namespace espalier::server {
namespace {

constexpr const char* kIntroduction =
    "# Metrics\n\n"
    "`GET /metrics` tells these in Prometheus' text (0.0.4), with the labels `model_name` and "
    "`engine` beside those in braces.\n`espalier serve --print-metrics` writes this page, and a "
    "test holds it to that.\n\n"
    "| `--metrics-names` | Espalier's own | vLLM's too |\n|---|---|---|\n"
    "| `both` (default) | `espalier:…` | `espalier:…` and `vllm:…` |\n"
    "| `espalier` | `espalier:…` | `espalier:…` |\n"
    "| `vllm` | – | `vllm:…` |\n\n"
    "Routers (the Gateway API's inference extension, llm-d, Dynamo, SMG) and boards made for vLLM "
    "read `vllm:…` unconfigured. "
    "`process_cpu_seconds_total` and the other `process_…` of Prometheus' client libraries have "
    "neither prefix nor labels.\nA name that ends in `_total` is a counter; the others are gauges "
    "but for the last table's, histograms.\n";

struct Row {
    std::string name, kind, help, labels;
    bool is_vllms = false;
    bool is_process() const { return name.starts_with("process_"); }
};

// Labels of a sample as Prometheus writes them, {code,path}; empty: none.
std::string labels_in(const std::string& sample) {
    static const std::regex label("(\\w+)=\"");
    std::string found;
    for (std::sregex_iterator at(sample.begin(), sample.end(), label), end; at != end; ++at) {
        const std::string name = (*at)[1];
        if (name == "model_name" || name == "engine" || name == "le") continue;
        found += (found.empty() ? "{" : ",") + name;
    }
    return found.empty() ? found : found + "}";
}

// Every metric once, in the order of the text; a later spelling behind vllm: marks it.
std::vector<Row> rows_of(const std::string& text) {
    std::vector<Row> rows;
    std::map<std::string, std::size_t> by_name;
    std::size_t at = 0;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        const bool is_help = line.starts_with("# HELP "), is_type = line.starts_with("# TYPE ");
        if (!is_help && !is_type) {
            if (rows[at].labels.empty()) rows[at].labels = labels_in(line);
            continue;
        }
        const std::size_t end = line.find(' ', 7);
        const std::string whole = line.substr(7, end - 7), rest = line.substr(end + 1);
        const std::string name = whole.substr(whole.find(':') + 1);
        if (is_help) {
            at = by_name.emplace(name, rows.size()).first->second;
            if (at == rows.size())
                rows.push_back({.name = name, .kind = {}, .help = rest, .labels = {}});
        } else {
            rows[at].kind = rest;
        }
        if (whole.starts_with("vllm:")) rows[at].is_vllms = true;
    }
    return rows;
}

template <typename Chosen>
std::string table(const char* title, const std::vector<Row>& rows, Chosen&& chosen) {
    std::string text = fmt::format("\n## {}\n\n| metric | what |\n|---|---|\n", title);
    for (const Row& row : rows)
        if (chosen(row)) text += fmt::format("| `{}{}` | {} |\n", row.name, row.labels, row.help);
    return text;
}

}  // namespace

std::string metrics_page() {
    Metrics metrics;
    metrics.count_response(200, "/v1/completions");
    engine::EngineStatus status;
    status.drafters = {"ngram"};
    status.sums.steps.accepted_at_depth[1] = 1;
    const ServerFacts facts{.connections = 1,
                            .model = ModelFacts{},
                            .experts = ExpertBytes{},
                            .trace = trace::WriterStatus{},
                            .grammars = grammar::CompilerStatus{},
                            .process = ProcessFacts{}};
    const std::vector<Row> rows = rows_of(metrics.text(MetricsNames::both, &status, facts));
    return kIntroduction +
           table("Espalier's own", rows,
                 [](const Row& row) { return !row.is_vllms && !row.is_process(); }) +
           table("vLLM's too", rows,
                 [](const Row& row) { return row.is_vllms && row.kind != "histogram"; }) +
           table("vLLM's too, histograms", rows,
                 [](const Row& row) { return row.kind == "histogram"; });
}

}  // namespace espalier::server
