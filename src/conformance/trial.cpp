// SPDX-License-Identifier: Apache-2.0
#include "conformance/trial.hpp"

#include <algorithm>

namespace espalier::conformance {

using namespace mla;

Layout Trial::any_layout() {
    Layout layout;
    layout.dims = support_.dims;
    layout.page_tokens = random.one_of(kPageTokens);
    layout.seed = random.bits();
    layout.by_slot = random.chance(0.5);
    layout.tight = random.chance(0.5);
    layout.first_slot = random.between(0, 1);
    if (!support_.queries.empty())
        layout.query = support_.queries[random.bits() % support_.queries.size()];
    return layout;
}

int Trial::any_multiprocessors() { return random.chance(0.5) ? 0 : random.between(1, 140); }

// A slot of 16 packed rows is 17,408.
std::int64_t Trial::any_partial_bytes() {
    return random.chance(0.5) ? 0 : random.one_of({100'000, 400'000, 1'500'000});
}

int Trial::any_heads() {
    static constexpr int kFew[] = {1, 3, 12, 16};
    return random.chance(0.7) ? random.one_of(kFew) : random.one_of(kHeadCounts);
}

RunOptions Trial::any_options() {
    static constexpr DType kOutputs[] = {DType::f32, DType::bf16, DType::f16};
    RunOptions options;
    options.workers = random.between(1, 3);
    options.out_dtype = random.one_of(kOutputs);
    options.invariant = random.chance(0.5);
    options.multiprocessors = any_multiprocessors();
    options.partial_bytes = any_partial_bytes();
    return options;
}

void Trial::expect_close(const Result& result, const Result& oracle, const Limits& limits,
                         const std::string& context, std::int64_t first_token) {
    const Closeness close = closeness(result, oracle, limits, first_token);
    measured(close.worst);
    note(close.beyond, context);
}

void Trial::measured(double share_of_limit) {
    outcome_.worst = std::max(outcome_.worst, share_of_limit);
}

std::optional<Result> Trial::run(const Batch& batch, const RunOptions& options) {
    Expected<Result> result = run_absorbed(device_, batch, options);
    if (result) return std::move(*result);
    failed(result.error(), describe(batch, options));
    return std::nullopt;
}

std::optional<Result> Trial::oracle(const Batch& batch, float scale) {
    return keep(oracle_absorbed(oracle_device_, batch, scale), "the oracle");
}

void Trial::note(const Difference& difference, const std::string& context) {
    ++outcome_.cases;
    if (!difference) return;
    ++outcome_.failures;
    if (outcome_.first_failure.empty())
        outcome_.first_failure = difference->empty() ? context : context + ": " + *difference;
}

void Trial::failed(const Error& error, std::string_view what) {
    if (error.kind == ErrorKind::io) outcome_.device_lost = true;
    note(error.message, std::string(what));
}

std::string describe(const Batch& batch, const RunOptions& options) {
    return fmt::format(
        "{} heads, keys of {} + {}, {} rows, {} queries, pages of {} from slot {}, {} output{}, {} "
        "bytes",
        batch.heads(), batch.kv().dims.latent, batch.kv().dims.rope, batch.view().rows,
        name_of(batch.query_dtype()), batch.kv().page_tokens, batch.view().first_slot,
        name_of(options.out_dtype), options.invariant ? ", invariant" : "", options.partial_bytes);
}

}  // namespace espalier::conformance
