// SPDX-License-Identifier: Apache-2.0
// Guarantee 6: work recorded once over capacities and played again with other lengths, masks and
// row counts gives the bits of a plain call. The host has no graphs: there it is the same call over
// changed arrays, with rows and tokens in reserve.
#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

constexpr int kRows = 8;
constexpr int kMaxTokens = 8;
constexpr int kMaxKeys = 500;
constexpr int kMaxSlots = kMaxKeys + 1;

Reserve capacities_of_graph(int page_tokens) {
    Reserve reserve;
    const int pages = (kMaxSlots + page_tokens - 1) / page_tokens;
    reserve.rows = kRows;
    reserve.tokens = kRows * kMaxTokens + 3;
    reserve.block_entries = pages + Layout{}.spare_entries;
    reserve.mask_bytes = kRows * kMaxTokens * kMaxSlots;
    reserve.pages = kRows * pages * 4 / 3 + 2;
    reserve.max_q_len = kMaxTokens;
    reserve.max_kv_len = kMaxSlots;
    reserve.total_splits = kRows * row_splits(kMaxTokens, kMaxSlots);
    return reserve;
}

// Rows of different q_len and mask; the last one has the query that sets the scale of e4m3.
std::vector<Row> rows_of_step(Random& random, int heads) {
    std::vector<Row> rows;
    const int count = random.between(0, kRows - 1);
    for (int b = 0; b < count; ++b) {
        const auto mask = static_cast<MaskKind>(random.between(0, 3));
        const int tokens = random.between(0, heads > 32 ? 2 : kMaxTokens);
        Row row = make_row(random, mask, heads, tokens,
                           hostile_length(random, heads > 32 ? 150 : kMaxKeys));
        if (mask == MaskKind::tree) grow_tree(random, row, random.one_of(kShapes));
        if (mask == MaskKind::dense) punch_holes(random, row, 0.7);
        rows.push_back(std::move(row));
    }
    rows.push_back(make_row(random, MaskKind::causal, heads, 1, 5));
    rows.back().query[0] = 16.0f;
    return rows;
}

}  // namespace

void check_graph_safe(Trial& trial) {
    Device& device = trial.device();
    const int heads = trial.any_heads();
    Layout layout = trial.any_layout();
    layout.reserve = capacities_of_graph(layout.page_tokens);
    RunOptions options = trial.any_options();
    constexpr int kSteps = 3;
    std::vector<std::unique_ptr<Batch>> steps;
    std::vector<Result> eager;
    for (int step = 0; step < kSteps; ++step) {
        layout.seed = trial.random.bits();
        steps.push_back(std::make_unique<Batch>(trial.format(), heads,
                                                rows_of_step(trial.random, heads), layout));
        auto result = trial.run(*steps.back(), options);
        if (!result) return;
        eager.push_back(std::move(*result));
    }
    options.partial_bytes = trial.any_partial_bytes();
    const Batch& first = *steps.front();
    auto placed = trial.keep(PlacedBatch::place(device, first), "placing");
    auto output =
        trial.keep(PlacedOutput::place(device, first.tokens(), heads, trial.dims().latent, options),
                   "placing");
    if (!placed || !output) return;
    const AbsorbedCall call = absorbed_call(*placed, first, *output, options);
    const auto recorded = trial.keep(
        device.record(options.workers,
                      device.kernels().scratch_bytes(capacities_of(first, options)),
                      [&](OpContext& context) { return device.kernels().absorbed(context, call); }),
        "recording");
    if (!recorded) return;
    // Backwards and forwards, so that long follows short and short follows long; each is played
    // twice, since the first play may leave something behind in scratch.
    for (const int step : {2, 1, 0, 0, 1, 2}) {
        const Batch& batch = *steps[static_cast<std::size_t>(step)];
        if (!trial.done(placed->refill(batch), "refilling") ||
            !trial.done(output->clear(), "clearing") || !trial.done((*recorded)->play(), "replay"))
            return;
        const auto replayed = trial.keep(output->read(), "outputs");
        if (!replayed) return;
        trial.expect_none(bit_difference(*replayed, eager[static_cast<std::size_t>(step)]),
                          "replay and plain call, step {}; {}", step, describe(batch, options));
        if (step != 1) continue;
        if (const auto oracle = trial.oracle(batch))
            trial.expect_close(
                *replayed, *oracle,
                accuracy_limits(trial.format(), Spread::normal, options.out_dtype, 20),
                "replay; " + describe(batch, options));
    }
}

}  // namespace espalier::conformance
