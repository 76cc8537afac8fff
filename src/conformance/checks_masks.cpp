// SPDX-License-Identifier: Apache-2.0
// Guarantees 1 to 3: what may not be seen, what may not leak, what may not be read.
#include <bit>
#include <cmath>
#include <limits>

#include "conformance/checks.hpp"
#include "mla/storage.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

constexpr std::uint32_t kNaNs = 0xffffffffu;  // in every format
// A quiet NaN of bf16, its infinity, fp16's infinity.
constexpr std::uint32_t kOtherPoison[] = {0x7fc07fc0u, 0x7f807f80u, 0x7c007c00u};

// Rows of which some tokens see nothing, for every reason there is.
std::vector<Row> blind_rows(Random& random, int heads) {
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::full, heads, 2, 0));
    rows.push_back(make_row(random, MaskKind::causal, heads, 4, 0));
    rows.push_back(make_row(random, MaskKind::causal, heads, 7, 3));  // 4 tokens before slot 0
    rows.push_back(make_row(random, MaskKind::tree, heads, 3, 3));    // words of 0, no history
    rows.push_back(make_row(random, MaskKind::tree, heads, 5, 0));
    rows.push_back(make_row(random, MaskKind::dense, heads, 2, 90));
    punch_holes(random, rows.back(), 0.0);
    rows.push_back(make_row(random, MaskKind::dense, heads, 2, 90));
    rows.back().malformed = true;
    rows.back().mask_offset = std::numeric_limits<std::int64_t>::max();
    rows.push_back(make_row(random, MaskKind::causal, heads, heads > 16 ? 8 : 64, 7));
    rows.push_back(make_row(random, MaskKind::causal, heads, 1, hostile_length(random, 200)));
    return rows;
}

// Tokens that the oracle says see nothing give nothing, padding included; the others are finite.
void expect_nothing_where_nothing_is(Trial& trial, const Batch& batch, const RunOptions& options) {
    const auto result = trial.run(batch, options);
    const auto oracle = trial.oracle(batch);
    if (!result || !oracle) return;
    for (std::int64_t token = 0; token < oracle->tokens(); ++token) {
        if (!std::isinf(oracle->lse_of(token, 0))) {
            trial.expect(
                std::isfinite(result->lse_of(token, 0)) && std::isfinite(result->row(token, 0)[0]),
                "token {} sees keys: lse {}, first column {}; {}", token, result->lse_of(token, 0),
                result->row(token, 0)[0], describe(batch, options));
        } else {
            trial.expect_none(not_nothing(*result, token), "{}", describe(batch, options));
        }
    }
}

// Largest magnitude that append can write: the end of fp16, of bf16 and f32.
float largest_stored(KvFormat format) { return format == KvFormat::fp16 ? 65504.0f : 3.38e38f; }

struct HiddenKeys {
    std::vector<Row> rows;    // the last two have a key each that is to be hidden
    std::vector<Row> hidden;  // the same with the largest numbers there
};

HiddenKeys with_hidden_keys(Random& random, KvFormat format, int heads, std::vector<Row> rows) {
    Row dense = make_row(random, MaskKind::dense, heads, 3, 60);
    punch_holes(random, dense, 0.7);
    for (int i = 0; i < dense.tokens; ++i)
        dense.dense[static_cast<std::size_t>(i * dense.keys + 17)] = 0;
    rows.push_back(std::move(dense));
    rows.push_back(make_row(random, MaskKind::causal, heads, 6, 40));
    HiddenKeys result{rows, rows};
    for (std::int64_t c = 0; c < kKey; ++c) {
        const float value = random.chance(0.5) ? largest_stored(format) : -largest_stored(format);
        result.hidden[rows.size() - 2].key[static_cast<std::size_t>(17 * kKey + c)] = value;
        // Only the last token sees it.
        result.hidden.back().key[static_cast<std::size_t>(39 * kKey + c)] = value;
    }
    return result;
}

}  // namespace

void check_nothing_visible(Trial& trial) {
    for (int round = 0; round < 2; ++round) {
        const int heads = trial.any_heads();
        const Batch batch(trial.format(), heads, blind_rows(trial.random, heads),
                          trial.any_layout());
        expect_nothing_where_nothing_is(trial, batch, trial.any_options());
    }
    // Ranks of a context-parallel group that hold no slot of a short sequence.
    const int world = trial.random.chance(0.5) ? 8 : 3;
    std::vector<Row> rows;
    for (const MaskKind mask : {MaskKind::causal, MaskKind::tree, MaskKind::full}) {
        rows.push_back(make_row(trial.random, mask, 3, 2, 0));
        rows.back().global_keys = 2;
    }
    Layout layout = trial.any_layout();
    layout.dcp_world = world;
    layout.dcp_rank = world - 1;
    expect_nothing_where_nothing_is(trial, Batch(trial.format(), 3, rows, layout),
                                    trial.any_options());
}

void check_garbage(Trial& trial) {
    const int heads = trial.any_heads();
    const HiddenKeys problem = with_hidden_keys(trial.random, trial.format(), heads,
                                                hostile_rows(trial.random, heads, 8000));
    for (const int page_tokens : kPageTokens) {
        Layout layout = trial.any_layout();
        layout.page_tokens = page_tokens;
        layout.poison = 0;
        const RunOptions options = trial.any_options();
        const Batch clean(trial.format(), heads, problem.rows, layout);
        const auto expected = trial.run(clean, options);
        if (!expected) return;
        layout.poison = kNaNs;
        const Batch dirty(trial.format(), heads, problem.rows, layout);
        if (const auto result = trial.run(dirty, options))
            trial.expect_none(bit_difference(*result, *expected), "poison {:#x}; {}", layout.poison,
                              describe(dirty, options));
        layout.poison = trial.random.one_of(kOtherPoison);
        const Batch holes(trial.format(), heads, problem.hidden, layout);
        const auto result = trial.run(holes, options);
        if (!result) return;
        const std::int64_t seeing = holes.first_token(problem.rows.size() - 1) + 5;
        for (std::int64_t token = 0; token < seeing; ++token)
            trial.expect_none(bit_difference(*result, token, *expected, token),
                              "poison {:#x} and the largest numbers in a hidden key, token {}; {}",
                              layout.poison, token, describe(holes, options));
    }
}

// Two branches from one root; the keys of one are appended by the device, once as numbers, once as
// NaN and infinities. The other branch must not notice.
void check_sibling_branches(Trial& trial) {
    const int heads = trial.any_heads();
    const int nodes = 7;
    Row row = make_row(trial.random, MaskKind::tree, heads, nodes,
                       nodes + hostile_length(trial.random, 300));
    row.words = ancestor_words({-1, 0, 0, 1, 2, 3, 4});  // odd nodes and even nodes
    const Layout layout = trial.any_layout();
    const RunOptions options = trial.any_options();
    const Batch batch(trial.format(), heads, {row}, layout);
    std::vector<float> sick(static_cast<std::size_t>(nodes * kKey));
    std::vector<std::int64_t> slots;
    for (int node = 0; node < nodes; ++node) {
        const std::int64_t slot = batch.slot(0, row.keys - nodes + node);
        slots.push_back(node % 2 == 1 ? slot : -1);
        for (std::int64_t c = 0; c < kKey; ++c)
            sick[static_cast<std::size_t>(node * kKey + c)] =
                trial.random.chance(0.5) ? std::numeric_limits<float>::quiet_NaN()
                                         : std::numeric_limits<float>::infinity();
    }
    Device& device = trial.device();
    auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    auto output =
        trial.keep(PlacedOutput::place(device, batch.tokens(), heads, trial.dims().latent, options),
                   "placing");
    auto rows_memory = trial.keep(device.allocate(sick.size() * 4), "placing");
    auto slot_memory = trial.keep(device.allocate(slots.size() * 8), "placing");
    if (!placed || !output || !rows_memory || !slot_memory) return;
    const auto expected = trial.run(batch, options);
    AppendCall append;
    append.tokens = nodes;
    append.latent = rows_memory->as<float>();
    append.rope = append.latent + kLatent;
    append.latent_stride = append.rope_stride = kKey;
    append.slot = slot_memory->as<std::int64_t>();
    append.kv = placed->kv();
    const AbsorbedCall call = absorbed_call(*placed, batch, *output, options);
    const auto run = [&](OpContext& context) -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(device.kernels().append(context, append));
        return device.kernels().absorbed(context, call);
    };
    if (!trial.done(device.upload(rows_memory->data(), sick.data(), sick.size() * 4), "upload") ||
        !trial.done(device.upload(slot_memory->data(), slots.data(), slots.size() * 8), "upload") ||
        !trial.done(device.run(options.workers,
                               device.kernels().scratch_bytes(capacities_of(batch, options)), run),
                    "append and attention"))
        return;
    const auto result = trial.keep(output->read(), "outputs");
    if (!result || !expected) return;
    for (int node = 0; node < nodes; node += 2)
        trial.expect_none(bit_difference(*result, node, *expected, node),
                          "NaN appended in another branch, node {}; {}", node,
                          describe(batch, options));
    for (int node = 1; node < nodes; node += 2)
        trial.expect(std::isfinite(result->row(node, 0)[0]),
                     "NaN appended to node {}: it must read as 0", node);
}

void check_bounds(Trial& trial) {
    const int heads = trial.random.between(1, 5);
    std::vector<Row> rows =
        hostile_rows(trial.random, heads, 4000, {.longest = 300, .malformed = true});
    for (int count = 0; count < 10; ++count) {
        rows.push_back(make_row(trial.random, MaskKind::dense, heads, 3, 50));
        rows.back().malformed = true;
        rows.back().mask_offset = malformed_offset(trial.random);
    }
    // From here on, an offset within the mask finds a mask like any other.
    rows.push_back(make_row(trial.random, MaskKind::dense, heads, 6, 50));
    punch_holes(trial.random, rows.back(), 1.0);
    Layout layout = trial.any_layout();
    layout.leading_tokens = trial.random.between(1, 9);
    const Batch batch(trial.format(), heads, rows, layout);
    const RunOptions options = trial.any_options();
    const auto result = trial.run(batch, options);
    const auto oracle = trial.oracle(batch);
    if (!result || !oracle) return;
    trial.expect_close(*result, *oracle,
                       accuracy_limits(trial.format(), Spread::normal, options.out_dtype, 10),
                       "malformed offsets; " + describe(batch, options), layout.leading_tokens);
    for (std::int64_t token = 0; token < layout.leading_tokens; ++token)
        trial.expect(std::isnan(result->row(token, heads - 1)[trial.dims().latent - 1]) &&
                         std::isnan(result->lse_of(token, 0)),
                     "token {} before q_indptr[0] = {} was written", token, layout.leading_tokens);
}

// Block tables where their requests are: the same bits, and a row whose number names no table sees
// nothing (the CPU refuses it: checks_refusal.cpp).
void check_tables_by_slot(Trial& trial) {
    Device& device = trial.device();
    const int heads = trial.any_heads();
    const std::vector<Row> rows = hostile_rows(trial.random, heads, 8000);
    Layout layout = trial.any_layout();
    const RunOptions options = trial.any_options();
    layout.by_slot = false;
    const auto expected = trial.run(Batch(trial.format(), heads, rows, layout), options);
    layout.by_slot = true;
    const Batch batch(trial.format(), heads, rows, layout);
    const auto result = trial.run(batch, options);
    if (!expected || !result) return;
    trial.expect_none(bit_difference(*result, *expected), "block tables by slot; {}",
                      describe(batch, options));
    if (device.is_host()) return;
    std::vector<std::int32_t> tables = batch.image().table_row;
    constexpr std::int32_t kFar = std::numeric_limits<std::int32_t>::max();
    const std::size_t victim = trial.random.bits() % tables.size();
    tables[victim] = trial.random.one_of({-1, batch.view().table_rows, kFar, -kFar - 1});
    auto memory = trial.keep(device.allocate(tables.size() * 4), "placing");
    auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    auto output =
        trial.keep(PlacedOutput::place(device, batch.tokens(), heads, trial.dims().latent, options),
                   "placing");
    if (!memory || !placed || !output ||
        !trial.done(device.upload(memory->data(), tables.data(), memory->bytes()), "upload"))
        return;
    AbsorbedCall call = absorbed_call(*placed, batch, *output, options);
    call.rows.table_row = memory->as<std::int32_t>();
    const auto run = [&](OpContext& context) { return device.kernels().absorbed(context, call); };
    if (!trial.done(device.run(options.workers,
                               device.kernels().scratch_bytes(capacities_of(batch, options)), run),
                    "a table that is none"))
        return;
    const auto blind = trial.keep(output->read(), "outputs");
    if (!blind) return;
    const std::int64_t first = batch.first_token(victim);
    for (std::int64_t token = first; token < first + rows[victim].tokens; ++token)
        trial.expect(blind->row(token, 0)[0] == 0.0f && std::isinf(blind->lse_of(token, heads - 1)),
                     "token {} sees keys through table {} of {}", token, tables[victim],
                     batch.view().table_rows);
}

void check_large_cache(Trial& trial) {
    Device& device = trial.device();
    const int heads = 4;
    Layout layout = trial.any_layout();
    layout.page_tokens = 64;
    layout.spare_entries = 0;
    layout.by_slot = false;
    const RunOptions options = trial.any_options();
    const Batch batch(trial.format(), heads,
                      {make_row(trial.random, MaskKind::causal, heads, 3, 150)}, layout);
    const auto expected = trial.run(batch, options);
    const std::int64_t stride = batch.kv().page_stride;
    const std::int64_t pages = (std::int64_t{1} << 31) / (64 * trial.dims().key()) + 64;
    auto memory = trial.keep(device.allocate(static_cast<std::size_t>(pages * stride), Fill::none),
                             "a cache above 2^31 elements");
    auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    auto output =
        trial.keep(PlacedOutput::place(device, batch.tokens(), heads, trial.dims().latent, options),
                   "placing");
    auto table = trial.keep(device.allocate(3 * sizeof(std::int32_t)), "placing");
    if (!expected || !memory || !placed || !output || !table) return;
    std::int32_t far[3];
    for (int entry = 0; entry < 3; ++entry) {
        const std::int64_t page = batch.image().block_table[static_cast<std::size_t>(entry)];
        far[entry] = static_cast<std::int32_t>(pages - 1 - 2 * entry);
        if (!trial.done(device.upload(memory->data() + far[entry] * stride,
                                      batch.image().pages.data() + page * stride,
                                      static_cast<std::size_t>(stride)),
                        "upload"))
            return;
    }
    if (!trial.done(device.upload(table->data(), far, sizeof(far)), "upload")) return;
    AbsorbedCall call = absorbed_call(*placed, batch, *output, options);
    call.kv.data = memory->data();
    call.kv.page_count = pages;
    call.rows.block_table = table->as<std::int32_t>();
    const auto run = [&](OpContext& context) { return device.kernels().absorbed(context, call); };
    if (!trial.done(device.run(options.workers,
                               device.kernels().scratch_bytes(capacities_of(batch, options)), run),
                    "attention over far pages"))
        return;
    if (const auto result = trial.keep(output->read(), "outputs"))
        trial.expect_none(bit_difference(*result, *expected), "pages {} to {} of {}; {}", far[2],
                          far[0], pages, describe(batch, options));
}

}  // namespace espalier::conformance
