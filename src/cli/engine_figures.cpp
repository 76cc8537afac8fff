// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_figures.hpp"

#include <algorithm>
#include <cmath>

namespace espalier::cli {
namespace {

double number(std::int64_t count) { return static_cast<double>(count); }
double ratio(double part, double whole) { return whole > 0 ? part / whole : 0.0; }
double per_step(const LoadResult& r, std::int64_t count) {
    return ratio(number(count), number(r.status.steps));
}
// Percentage of the time in which the engine had a request.
double share(const LoadResult& r, schedule::Time time) {
    return 100 * ratio(number(time), number(r.status.sums.busy));
}
const schedule::StepTokens& tokens(const LoadResult& r) { return r.status.totals.tokens; }
// Steps that computed no prompt.
const engine::DecodeCounts& decode(const LoadResult& r) { return r.status.sums.steps.decode; }
double per_decode_step(const LoadResult& r, std::int64_t count) {
    return ratio(number(count), number(decode(r).steps));
}

using Load = const LoadResult&;
const Figure kFigures[] = {
    {"requests/s", 2, [](Load r) { return ratio(number(r.requests), r.seconds); }},
    {"output tokens/s", 1, output_rate},
    {"prompt tokens/s", 1, [](Load r) { return ratio(number(r.prompt_tokens), r.seconds); }},
    {"first token p50 ms", 1, [](Load r) { return 1e3 * percentile(r.first_token, 0.5); }},
    {"first token p99 ms", 1, [](Load r) { return 1e3 * percentile(r.first_token, 0.99); }},
    {"between tokens p50 ms", 2, [](Load r) { return 1e3 * percentile(r.gaps, 0.5); }},
    {"between tokens p99 ms", 2, [](Load r) { return 1e3 * percentile(r.gaps, 0.99); }},
    {"accepted drafts per step", 2,
     [](Load r) {
         return ratio(number(r.status.sums.steps.accepted), number(r.status.sums.drawing_steps()));
     }},
    {"drafts verified", 0, [](Load r) { return number(tokens(r).drafts); }},
    {"% of these accepted", 1,
     [](Load r) {
         return 100 * ratio(number(r.status.sums.steps.accepted), number(tokens(r).drafts));
     }},
    {"steps", 0, [](Load r) { return number(r.status.steps); }},
    {"requests per step", 1, [](Load r) { return per_step(r, r.status.sums.steps.requests); }},
    {"roots per step", 1, [](Load r) { return per_step(r, tokens(r).roots); }},
    {"drafts per step", 1, [](Load r) { return per_step(r, tokens(r).drafts); }},
    {"prompt tokens per step", 1,
     [](Load r) { return per_step(r, tokens(r).prompt_absorbed + tokens(r).prompt_decompressed); }},
    {"preemptions", 0, [](Load r) { return number(r.status.totals.preemptions); }},
    {"prompt tokens from the prefix index", 0,
     [](Load r) { return number(r.status.totals.hit_tokens); }},
    {"ms per step", 3, [](Load r) { return 1e-6 * per_step(r, r.status.sums.busy); }},
    {"% of the time in the model", 1, [](Load r) { return share(r, r.status.sums.steps.model); }},
    {"% in sampling", 1, [](Load r) { return share(r, r.status.sums.steps.sampling); }},
    {"% in planning and drafting", 2,
     [](Load r) { return share(r, r.status.sums.steps.planning); }},
    {"decode: ms per step", 3, [](Load r) { return 1e-6 * per_decode_step(r, decode(r).whole); }},
    {"decode: of this drafting", 3,
     [](Load r) { return 1e-6 * per_decode_step(r, decode(r).drafting); }},
    {"decode: of this masks", 3,
     [](Load r) { return 1e-6 * per_decode_step(r, decode(r).masking); }},
    {"decode: draft levels per step", 2,
     [](Load r) { return per_decode_step(r, decode(r).draft_levels); }},
    {"decode: drafts per step and request", 2,
     [](Load r) { return ratio(number(decode(r).drafts), number(decode(r).requests)); }},
    {"decode: tokens per step and request", 3,
     [](Load r) { return ratio(number(decode(r).committed), number(decode(r).requests)); }},
    {"decode: tokens/s", 1,
     [](Load r) { return ratio(number(decode(r).committed), 1e-9 * number(decode(r).whole)); }},
    {"% outside model and sampling", 2,
     [](Load r) {
         return share(
             r, r.status.sums.busy - r.status.sums.steps.model - r.status.sums.steps.sampling);
     }},
};

}  // namespace

std::span<const Figure> engine_figures() { return kFigures; }

double output_rate(const LoadResult& result) {
    return ratio(number(result.tokens), result.seconds);
}

double percentile(std::span<const double> sorted, double share) {
    if (sorted.empty()) return 0;
    const double rank = std::ceil(share * static_cast<double>(sorted.size()));
    return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace espalier::cli
