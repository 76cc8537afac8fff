// SPDX-License-Identifier: Apache-2.0
// What /metrics tells: the engine's numbers, and what the server saw of each request, as Prometheus
// reads them (text 0.0.4). Numbers that vLLM has too go by its names, behind espalier: and behind
// vllm:, so that routers and boards made for it work unconfigured. Belongs to the I/O thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/mailbox.hpp"
#include "engine/status.hpp"
#include "grammar/compiler.hpp"
#include "server/process_facts.hpp"
#include "trace/writer.hpp"

namespace espalier::server {

class Histogram {
  public:
    // Ascending upper bounds, each included; what is above the last is counted too.
    explicit Histogram(std::span<const double> bounds)
        : bounds_(bounds), counts_(bounds.size() + 1) {}
    void observe(double value, std::int64_t times = 1);
    std::int64_t count() const { return count_; }
    double sum() const { return sum_; }
    // name_bucket{labels,le="…"}, _sum and _count.
    void append_to(std::string& text, const std::string& name, const std::string& labels) const;

  private:
    std::span<const double> bounds_;
    std::vector<std::int64_t> counts_;
    double sum_ = 0;
    std::int64_t count_ = 0;
};

// The parts of a request that histograms count when it has ended.
struct RequestShape {
    std::int64_t choices = 1;     // per prompt
    std::int64_t max_tokens = 0;  // 0: as many as fit
};

// Bytes of routed experts with --mmap-experts, since the start.
struct ExpertBytes {
    std::int64_t needed = 0;     // by steps, a layer's each time
    std::int64_t in_memory = 0;  // of these, when the router chose
};

// Facts that stay as they are while a model is served.
struct ModelFacts {
    std::string name;  // in answers
    std::string architecture;
    std::string weights;  // the type of a projection, or what it was rounded to; empty: not known
    std::string kv_format, backend, variant;
    std::int64_t max_model_len = 0;
    std::int64_t page_tokens = 0, pages = 0;  // of the cache
};

// Facts that neither an engine nor a request tells.
struct ServerFacts {
    std::int64_t connections = 0;
    std::optional<ModelFacts> model = {};                  // none: it is not loaded yet
    std::optional<ExpertBytes> experts = {};               // none: all weights are in memory
    std::optional<trace::WriterStatus> trace = {};         // none: no trace is written
    std::optional<grammar::CompilerStatus> grammars = {};  // none: likewise not loaded
    std::optional<ProcessFacts> process = {};              // none: /proc says nothing
};

// Names that are told: with the prefix espalier:, those that vLLM has too with vllm:, or both.
enum class MetricsNames { espalier, vllm, both };
// Names for one of the words espalier, vllm and both.
MetricsNames metrics_names_of(std::string_view word);

class Metrics {
  public:
    Metrics();
    // A choice has ended.
    void observe_choice(const engine::ChoiceUpdate& choice);
    // A whole request has; longest: tokens of its longest output.
    void observe_request(const RequestShape& shape, std::int64_t longest);
    // Tokens came together after a wait; they share it.
    void observe_gap(double seconds, std::int64_t tokens);
    // path: of the route, so that clients cannot make up series.
    void count_response(int status, const char* path) { ++responses_[{path, status}]; }

    // status: none while the model loads.
    std::string text(MetricsNames names, const engine::EngineStatus* status,
                     const ServerFacts& facts) const;

  private:
    struct Writer;
    void append_vllms(const Writer& out, const engine::EngineStatus* status,
                      const ServerFacts& facts) const;
    void append_own(const Writer& out, const engine::EngineStatus* status,
                    const ServerFacts& facts) const;

    struct Named {
        const char* name;
        const char* help;
        Histogram histogram;
    };
    enum Index : std::size_t {
        kFirstToken,
        kGap,
        kPerToken,
        kWhole,
        kQueue,
        kPrefill,
        kDecode,
        kInference,
        kPrompt,
        kOutput,
        kLongest,
        kMaxTokens,
        kChoices,
    };
    std::vector<Named> histograms_;                                  // by Index
    std::map<std::pair<std::string, int>, std::int64_t> responses_;  // by path and status
};

// docs/metrics.md: every family of a server that has all there is to tell.
std::string metrics_page();

}  // namespace espalier::server
