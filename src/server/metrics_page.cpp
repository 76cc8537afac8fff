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
    "`espalier serve --print-metrics` writes this page, and a test holds it to that. `GET "
    "/metrics` "
    "tells these in Prometheus' text (0.0.4).\n`--metrics-names`: `both` (the default) and "
    "`espalier` have all of them behind `espalier:`; `both` and `vllm` have those marked vLLM "
    "behind "
    "`vllm:`,\nwhich routers (the Gateway API's inference extension, llm-d, Dynamo, SMG) and "
    "boards "
    "made for vLLM read unconfigured; with `vllm` they are\nnot behind `espalier:` too. "
    "`process_…` "
    "have no prefix. All but these have the labels `model_name` and `engine`.\n\n"
    "| metric | kind | more labels | vLLM | what |\n|---|---|---|---|---|\n";

struct Row {
    std::string name, kind, help, labels;
    bool is_vllms = false;
};

std::string labels_in(const std::string& sample) {
    static const std::regex label("(\\w+)=\"");
    std::string found;
    for (std::sregex_iterator at(sample.begin(), sample.end(), label), end; at != end; ++at) {
        const std::string name = (*at)[1];
        if (name == "model_name" || name == "engine" || name == "le") continue;
        found += fmt::format("{}`{}`", found.empty() ? "" : ", ", name);
    }
    return found;
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
    std::vector<Row> rows;
    std::map<std::string, std::size_t> by_name;
    std::istringstream in(metrics.text(MetricsNames::both, &status, facts));
    for (std::string line; std::getline(in, line);) {
        const bool is_help = line.starts_with("# HELP "), is_type = line.starts_with("# TYPE ");
        if (!is_help && !is_type) {
            if (rows.back().labels.empty()) rows.back().labels = labels_in(line);
            continue;
        }
        const std::size_t end = line.find(' ', 7);
        const std::string whole = line.substr(7, end - 7), rest = line.substr(end + 1);
        const std::string name = whole.substr(whole.find(':') + 1);
        if (whole.starts_with("vllm:")) {
            rows[by_name.at(name)].is_vllms = true;
        } else if (is_help) {
            by_name[name] = rows.size();
            rows.push_back({.name = name, .kind = {}, .help = rest, .labels = {}});
        } else {
            rows.back().kind = rest;
        }
    }
    std::string page = kIntroduction;
    for (const Row& row : rows)
        page += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, row.kind, row.labels,
                            row.is_vllms ? "yes" : "", row.help);
    return page;
}

}  // namespace espalier::server
