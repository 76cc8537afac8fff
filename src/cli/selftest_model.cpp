// SPDX-License-Identifier: Apache-2.0
// espalier selftest model: a first look at a checkpoint on this machine. How well it predicts a
// text that the binary has, whether the engine keeps its promise on it, and its speed with and
// without drafts, in one block to paste into a report.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/page.hpp"
#include "cli/command.hpp"
#include "cli/continuation.hpp"
#include "cli/engine_flags.hpp"
#include "cli/identity_text.hpp"
#include "cli/lossless_findings.hpp"
#include "cli/selftest_text.hpp"
#include "cli/terminal.hpp"
#include "cli/text_windows.hpp"
#include "espalier/version.hpp"
#include "runtime/identity.hpp"

namespace espalier::cli {
namespace {

constexpr std::size_t kWindow = 512;
// Sapling, with 24 M active parameters, needs 1.81; with rope_theta 100 instead of 10,000 2.90.
constexpr double kMostBitsPerByte = 2.0;
constexpr std::size_t kOpenings = 4;
constexpr std::size_t kOpeningTokens = 200;
constexpr std::int64_t kContinuedTokens = 64;

struct SelftestModelOptions {
    std::string model;
    std::string draft;
    std::int64_t limit = 4000;
    double seconds = 30;
    std::uint64_t seed = 1;
    runtime::LoadOptions load;
    bool enforce_eager = false;
};

using Tokens = std::vector<std::int32_t>;

// Openings at equal distances, continued greedily on an engine of their own.
struct Speed {
    std::vector<Tokens> outputs;
    std::vector<std::string> drafters;
    std::int64_t tokens = 0;
    double seconds = 0;
    double rate() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

class ModelTest {
  public:
    explicit ModelTest(const SelftestModelOptions& options) : options_(options) {}

    Expected<void> run() {
        ESPALIER_RETURN_IF_ERROR(load());
        ESPALIER_RETURN_IF_ERROR(predict_text());
        ESPALIER_RETURN_IF_ERROR(hold_workloads());
        ESPALIER_RETURN_IF_ERROR(compare_speeds());
        ESPALIER_RETURN_IF_ERROR(print_identity());
        fmt::print("\n{}", table_.text(TableFormat::markdown));
        if (failed_.empty()) return {};
        return fail(ErrorKind::invalid, "selftest model: failed: {}", fmt::join(failed_, "; "));
    }

  private:
    // A row of the report; `wanted` is empty where a figure is information.
    void report(const std::string& what, const std::string& found, const std::string& wanted,
                bool holds) {
        table_.rows.push_back({what, found, wanted, wanted.empty() ? "" : holds ? "ok" : "FAILED"});
        if (!holds) failed_.push_back(what);
    }

    // The model for the largest of what it is to do.
    Expected<void> load() {
        ESPALIER_ASSIGN_OR_RETURN(files_,
                                  runtime::ModelFiles::open(options_.model, options_.draft));
        ESPALIER_ASSIGN_OR_RETURN(
            text_, files_.encode_prompt(selftest_text(), text::SpecialTokens::as_text));
        text_.resize(std::min(text_.size(), static_cast<std::size_t>(options_.limit)));
        ESPALIER_ASSIGN_OR_RETURN(drafters_, runtime::choose_drafters({"auto"}, files_));
        ESPALIER_ASSIGN_OR_RETURN(const runtime::SizeFacts facts,
                                  runtime::size_facts(files_, drafters_, options_.load));
        runtime::SizeOptions one;
        one.rows = 1;
        one.step_tokens = lossless::kWorkloadTokens;
        one.pages = 2 + cache::pages_for(std::int64_t{kOpeningTokens} + kContinuedTokens);
        ESPALIER_ASSIGN_OR_RETURN(sizes_, runtime::derive_sizes(one, facts));
        EngineSizes largest;
        largest.max_model_len = files_.checkpoint->config().max_position_embeddings;
        largest.max_step_tokens = std::max(lossless::kWorkloadTokens, sizes_.max_step_tokens);
        largest.max_step_gather = std::max(lossless::kWorkloadGather, sizes_.max_step_gather);
        ESPALIER_ASSIGN_OR_RETURN(
            loaded_, load_model(files_.checkpoint, largest,
                                runtime::with_drafters(options_.load, drafters_, files_)));
        return {};
    }

    Expected<void> predict_text() {
        EvalFigures figures;
        StatusLine line;
        WindowReader reader(loaded_);
        const auto context =
            static_cast<std::size_t>(loaded_.model->config().max_position_embeddings);
        const std::size_t window = std::min(kWindow, context);
        for (std::size_t first = 0; first + 1 < text_.size(); first += window) {
            line.update("{} of {} tokens of a text", first, text_.size());
            const auto part =
                std::span(text_).subspan(first, std::min(window, text_.size() - first));
            ESPALIER_RETURN_IF_ERROR(
                read_window(part, *files_.tokenizer, reader, nullptr, figures));
        }
        report(fmt::format("bits per byte of {} tokens of text", figures.tokens()),
               fmt::format("{:.3f}", figures.bits_per_byte()),
               fmt::format("at most {:.1f}", kMostBitsPerByte),
               figures.bits_per_byte() <= kMostBitsPerByte);
        return {};
    }

    Expected<void> hold_workloads() {
        lossless::Subject target{*loaded_.model, *files_.tokenizer};
        target.capture = workload_capture(loaded_, options_.enforce_eager);
        runtime::DrafterChoice models = drafters_;
        models.ngram = models.grammar = false;  // workloads have them at random
        if (models.runs_models())
            target.make_parts = [&](const schedule::SchedulerOptions& of) {
                return parts_with(models, loaded_, of, target.capture, *files_.tokenizer);
            };
        ESPALIER_RETURN_IF_ERROR(lossless::check_subject(target));
        const LosslessFindings found = run_workloads(options_.seed, options_.seconds, target);
        report("workloads with a request unlike itself alone",
               fmt::format("{} of {} ({} requests, {} tokens)", found.failed, found.workloads,
                           found.coverage.requests, found.coverage.tokens),
               "0", found.failed == 0);
        if (found.failed > 0)
            fmt::print("FAILED\n  {}\n  again: selftest lossless with --seed {} --seconds 0\n",
                       fmt::join(found.first_failure, "\n  "), found.failing_seed);
        return {};
    }

    Expected<void> compare_speeds() {
        ESPALIER_ASSIGN_OR_RETURN(const Speed plain, continue_openings({"off"}));
        ESPALIER_ASSIGN_OR_RETURN(const Speed drafted, continue_openings({"auto"}));
        report("texts that drafts changed",
               plain.outputs == drafted.outputs ? fmt::format("0 of {}", plain.outputs.size())
                                                : "one or more",
               "0", plain.outputs == drafted.outputs);
        report("tokens/s without drafts", fmt::format("{:.1f}", plain.rate()), "", true);
        report(fmt::format("tokens/s with {}", fmt::join(drafted.drafters, ", ")),
               fmt::format("{:.1f} ({:.2f} times)", drafted.rate(),
                           plain.rate() > 0 ? drafted.rate() / plain.rate() : 0),
               "", true);
        return {};
    }

    Expected<Speed> continue_openings(const std::vector<std::string>& speculate) {
        runtime::EngineOptions options;
        options.speculate = speculate;
        options.enforce_eager = options_.enforce_eager;
        ESPALIER_ASSIGN_OR_RETURN(runtime::RunningEngine running,
                                  runtime::RunningEngine::start(files_, loaded_, sizes_, options));
        Speed speed;
        speed.drafters = running.engine().status().drafters;
        StatusLine line;
        for (std::size_t i = 0; i < kOpenings; ++i) {
            line.update("opening {} of {}, {}", i + 1, kOpenings, speculate[0]);
            ESPALIER_ASSIGN_OR_RETURN(
                Continuation made,
                continue_request(running.engine(), opening(i), [](const accept::Emission&) {}));
            speed.tokens += std::ssize(made.tokens) - 1;  // the first comes with the prompt
            speed.seconds += made.seconds;
            speed.outputs.push_back(std::move(made.tokens));
        }
        ESPALIER_RETURN_IF_ERROR(stop_engine(running));
        return speed;
    }

    engine::Request opening(std::size_t index) const {
        const std::size_t length = std::min(kOpeningTokens, text_.size());
        const auto first = static_cast<std::ptrdiff_t>((text_.size() - length) * index / kOpenings);
        engine::Request request;
        request.prompt.assign(text_.begin() + first,
                              text_.begin() + first + static_cast<std::ptrdiff_t>(length));
        request.output.max_tokens = kContinuedTokens;
        request.output.ignore_eos = true;
        request.sampling.temperature = 0;
        return request;
    }

    Expected<void> print_identity() const {
        ESPALIER_ASSIGN_OR_RETURN(
            const TextIdentity identity,
            runtime::text_identity(*files_.checkpoint, loaded_.identity_options(),
                                   runtime::EngineOptions{}.prefill_segment));
        fmt::print("espalier {}, {} on {}, {} threads, loaded in {:.1f} s\n{}", ESPALIER_VERSION,
                   options_.model, loaded_.backend->name(), loaded_.device->workers(),
                   loaded_.load_seconds, identity_text(identity));
        return {};
    }

    const SelftestModelOptions& options_;
    runtime::ModelFiles files_;
    runtime::DrafterChoice drafters_;
    runtime::LoadedModel loaded_;
    EngineSizes sizes_;  // of an engine for one request
    Tokens text_;
    Table table_{.columns = {"check", "found", "wanted", ""}, .rows = {}};
    std::vector<std::string> failed_;
};

}  // namespace

Run add_selftest_model(CLI::App& selftest) {
    const auto options = std::make_shared<SelftestModelOptions>();
    CLI::App* command = selftest.add_subcommand(
        "model", "Try a checkpoint: text prediction, losslessness, speed with and without drafts");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    command->add_option("--draft", options->draft, "EAGLE3 draft for the model");
    command->add_option("--limit", options->limit, "Tokens of the text at most")
        ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 20))
        ->capture_default_str();
    command->add_option("--seconds", options->seconds, "Time for lossless workloads; one at least")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command
        ->add_option("--seed", options->seed, "Seed of the first workload; the next ones count up")
        ->capture_default_str();
    add_weights_flag(*command, options->load.rounding);
    add_head_flag(*command, options->load.head_rounding);
    add_activations_flag(*command, options->load.activations);
    add_mmap_experts_flag(*command, options->load.mmap_experts);
    add_enforce_eager_flag(*command, options->enforce_eager);
    add_kv_format_flag(*command, options->load.kv_format);
    add_device_flag(*command, options->load.device);
    add_threads_flag(*command, options->load.threads);
    return [options] { return ModelTest(*options).run(); };
}

}  // namespace espalier::cli
