// SPDX-License-Identifier: Apache-2.0
// Accuracy against the double oracle on the stored (rounded) inputs, and guarantee 8.
#include <algorithm>
#include <cmath>

#include "conformance/checks.hpp"
#include "conformance/ideal.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

// Scores of peaked queries reach 4 deviations of 4·√576·scale ≈ 28.
constexpr double kLargestScore = 30;

void compare(Trial& trial, const std::vector<Row>& rows, int heads, const Layout& layout,
             const RunOptions& options, Spread spread, const std::string& context) {
    const Batch batch(trial.format(), heads, rows, layout);
    const auto result = trial.run(batch, options);
    const auto oracle = trial.oracle(batch, options.scale);
    if (!result || !oracle) return;
    trial.expect_close(*result, *oracle,
                       accuracy_limits(trial.format(), spread, options.out_dtype, kLargestScore),
                       context + "; " + describe(batch, options));
}

std::vector<Row> long_rows(Random& random, int heads) {
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::causal, heads, 2,
                            random.between(kLongestRow - 1000, kLongestRow)));
    rows.push_back(make_row(random, MaskKind::tree, heads, 2, hostile_length(random, 3000)));
    grow_tree(random, rows.back(), Shape::deep_tail);
    rows.push_back(make_row(random, MaskKind::dense, heads, 1, hostile_length(random, 3000)));
    punch_holes(random, rows.back(), 0.5);
    return rows;
}

}  // namespace

void check_accuracy(Trial& trial) {
    const Spread spreads[] = {Spread::normal, Spread::flat, Spread::peaked};
    for (const int heads : kHeadCounts) {
        const Spread spread = trial.random.one_of(spreads);
        const bool scales = trial.format() == KvFormat::fp8_token && trial.random.chance(0.5);
        const std::vector<Row> rows = hostile_rows(
            trial.random, heads, 5000, {.spread = spread, .malformed = true, .scales = scales});
        compare(trial, rows, heads, trial.any_layout(), trial.any_options(), spread,
                fmt::format("spread {}{}", static_cast<int>(spread),
                            scales ? ", token scales far apart" : ""));
    }
    const int heads = trial.random.chance(0.8) ? 1 : 3;
    compare(trial, long_rows(trial.random, heads), heads, trial.any_layout(), trial.any_options(),
            Spread::normal, "long rows");
}

// 0.3 dB below a simulated ideal kernel that rounds P and the output once each.
void check_signal_to_noise(Trial& trial) {
    const int heads = 16;
    std::vector<Row> rows;
    for (const int tokens : {4, 8})
        rows.push_back(make_row(trial.random, MaskKind::causal, heads, tokens,
                                trial.random.between(400, 600)));
    Layout layout = trial.any_layout();
    layout.padding_tokens = 0;
    RunOptions options = trial.any_options();
    options.out_dtype = usual_query(trial.format());
    const Batch batch(trial.format(), heads, rows, layout);
    const auto result = trial.run(batch, options);
    const auto oracle = trial.oracle(batch);
    if (!result || !oracle) return;
    const Result ideal =
        ideal_absorbed(trial.oracle_device().pool(), batch, rows, options.out_dtype);
    const double reached = signal_to_noise(*result, *oracle);
    const double possible = signal_to_noise(ideal, *oracle);
    trial.measured(std::pow(10.0, (possible - 0.3 - reached) / 20.0));
    trial.expect(reached >= possible - 0.3,
                 "signal over noise {:.2f} dB, an ideal kernel has {:.2f} dB; {}", reached,
                 possible, describe(batch, options));
}

void check_outputs(Trial& trial) {
    const int heads = trial.any_heads();
    const std::vector<Row> rows = hostile_rows(trial.random, heads, 3000);
    const Batch batch(trial.format(), heads, rows, trial.any_layout());
    const auto oracle = trial.oracle(batch);
    if (!oracle) return;
    for (const DType out_dtype : {DType::f32, DType::bf16, DType::f16}) {
        RunOptions options = trial.any_options();
        options.out_dtype = out_dtype;
        const auto result = trial.run(batch, options);
        options.want_lse = false;
        const auto without = trial.run(batch, options);
        if (!result || !without) return;
        trial.expect_close(*result, *oracle,
                           accuracy_limits(trial.format(), Spread::normal, out_dtype, 10),
                           describe(batch, options));
        trial.expect_none(bit_difference(*without, *result), "without lse; {}",
                          describe(batch, options));
    }
}

void check_context_parallel(Trial& trial) {
    const int heads = trial.random.one_of({1, 3, 16});
    for (const int world : {2, 3, 8}) {
        for (int rank = 0; rank < world; ++rank) {
            std::vector<Row> rows;
            for (const MaskKind mask : {MaskKind::causal, MaskKind::tree, MaskKind::full}) {
                for (const int global : {0, 1, 5, 64, trial.random.between(65, 400)}) {
                    const int local = global > rank ? (global - rank + world - 1) / world : 0;
                    Row row =
                        make_row(trial.random, mask, heads, trial.random.between(1, 4), local);
                    row.global_keys = global;
                    if (mask == MaskKind::tree)
                        grow_tree(trial.random, row,
                                  trial.random.chance(0.5) ? Shape::deep_tail : Shape::random);
                    rows.push_back(std::move(row));
                }
            }
            Layout layout = trial.any_layout();
            layout.dcp_world = world;
            layout.dcp_rank = rank;
            compare(trial, rows, heads, layout, trial.any_options(), Spread::normal,
                    fmt::format("rank {} of {}", rank, world));
        }
    }
}

// One column carries the score, so it is exact, and what is tested is the softmax over a range of
// ±1e4: rising (the maximum comes last), falling, and anywhere.
void check_overflow_safe(Trial& trial) {
    const int heads = 2;
    const float reach = trial.format() == KvFormat::fp8_tensor ? 8.0f : 256.0f;
    std::vector<Row> rows;
    for (const int keys : {5, 64, 130, trial.random.between(500, 1500)}) {
        Row row = make_row(trial.random, MaskKind::causal, heads, 2, keys);
        const bool scattered = trial.random.chance(0.3);
        for (int c = 0; c < keys; ++c) {  // the first rope column
            const float step = scattered ? static_cast<float>(trial.random.between(0, 1000)) / 1e3f
                                         : static_cast<float>(c) / static_cast<float>(keys);
            row.key[static_cast<std::size_t>(c * kKey + kLatent)] = reach * (2.0f * step - 1.0f);
        }
        for (int packed = 0; packed < 2 * heads; ++packed)
            for (std::int64_t d = 0; d < kKey; ++d)
                row.query[static_cast<std::size_t>(packed * kKey + d)] =
                    d == kLatent ? (packed % 2 == 0 ? 16.0f : -16.0f) : 0.0f;
        rows.push_back(std::move(row));
    }
    const Batch batch(trial.format(), heads, rows, trial.any_layout());
    for (int round = 0; round < 2; ++round) {
        RunOptions options = trial.any_options();
        options.scale = 1e4f / (16.0f * reach);
        const auto result = trial.run(batch, options);
        const auto oracle = trial.oracle(batch, options.scale);
        if (!result || !oracle) return;
        trial.expect_close(*result, *oracle,
                           accuracy_limits(trial.format(), Spread::normal, options.out_dtype, 1e4),
                           "logits of 1e4; " + describe(batch, options));
    }
}

}  // namespace espalier::conformance
