// SPDX-License-Identifier: Apache-2.0
// Guarantees 4 and 5: a token's bits depend on its own q and its visible keys in order, and on
// nothing else. On CUDA this holds with the flag `invariant`, which all but the first check set.
#include <algorithm>

#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

RunOptions invariant_options(Trial& trial) {
    RunOptions options = trial.any_options();
    options.invariant = true;
    return options;
}

// Machine facts that no bits may depend on.
void vary_machine(Trial& trial, RunOptions& options) {
    options.workers = trial.random.between(1, 3);
    options.multiprocessors = trial.any_multiprocessors();
    options.partial_bytes = trial.any_partial_bytes();
}

// Bits are compared across batches, so the query dtype must stay; the rest may change.
Layout other_layout(Trial& trial, const Layout& first) {
    Layout layout = trial.any_layout();
    layout.query = first.query;
    layout.padding_tokens = trial.random.between(0, 20);
    layout.spare_entries = trial.random.between(0, 5);
    return layout;
}

// e4m3 queries are stored relative to the batch's largest: with one more row in every batch that
// holds it, all batches agree.
Row loudest_row(int heads) {
    Row row;
    row.tokens = row.tail = 1;
    row.words = {1};
    row.query.assign(static_cast<std::size_t>(heads * kKey), 0.0f);
    row.query[0] = 32.0f;
    return row;
}

std::optional<Result> run_rows(Trial& trial, std::vector<Row> rows, int heads, const Layout& layout,
                               const RunOptions& options) {
    rows.push_back(loudest_row(heads));
    return trial.run(Batch(trial.format(), heads, rows, layout), options);
}

// Each token of a tree row as a row of its own over the same slots, of which its word says what it
// sees. A call of such rows alone may have another kernel than one of longer rows.
std::vector<Row> one_by_one(const Row& tree, int heads) {
    std::vector<Row> rows;
    const std::ptrdiff_t columns = heads * kKey;
    for (int i = 0; i < tree.tokens; ++i) {
        Row row = tree;
        row.tokens = 1;
        row.query.assign(tree.query.begin() + i * columns, tree.query.begin() + (i + 1) * columns);
        row.words = {tree.words[static_cast<std::size_t>(i)]};
        rows.push_back(std::move(row));
    }
    return rows;
}

// Number of tokens that the budget of scores allows, at most `most`; at least one.
int affordable_tokens(Trial& trial, int heads, int keys, int budget, int most) {
    return trial.random.between(1, std::clamp(budget / (heads * (keys + 1)), 1, most));
}

}  // namespace

void check_deterministic(Trial& trial) {
    const int heads = trial.any_heads();
    const Batch batch(trial.format(), heads, hostile_rows(trial.random, heads, 20000),
                      trial.any_layout());
    RunOptions options = trial.any_options();
    for (const bool invariant : {false, true}) {
        options.invariant = invariant;
        const auto expected = trial.run(batch, options);
        for (const int workers : {1, 2, 3}) {
            options.workers = workers;
            const auto again = trial.run(batch, options);
            if (!expected || !again) return;
            trial.expect_none(bit_difference(*again, *expected), "{} workers; {}", workers,
                              describe(batch, options));
        }
    }
}

// The layers of a step share one plan that is made ahead of them. Each call with it gives the bits
// of a call that makes its own, and leaves it fit for the next.
void check_shared_plan(Trial& trial) {
    Device& device = trial.device();
    const Kernels& kernels = device.kernels();
    const int heads = trial.any_heads();
    const Batch batch(trial.format(), heads, hostile_rows(trial.random, heads, 10000),
                      trial.any_layout());
    RunOptions options = trial.any_options();
    for (const bool invariant : {false, true}) {
        options.invariant = invariant;
        const auto expected = trial.run(batch, options);
        options.partial_bytes = trial.any_partial_bytes();
        const Capacities most = capacities_of(batch, options);
        const auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
        auto output = trial.keep(
            PlacedOutput::place(device, batch.tokens(), heads, trial.dims().latent, options),
            "placing");
        auto memory = trial.keep(device.allocate(kernels.plan_bytes(most)), "placing");
        if (!expected || !placed || !output || !memory) return;
        AbsorbedCall call = absorbed_call(*placed, batch, *output, options);
        call.plan = memory->data();
        const auto plan = [&](OpContext& context) { return kernels.plan(context, call); };
        const auto attention = [&](OpContext& context) { return kernels.absorbed(context, call); };
        if (!trial.done(device.run(options.workers, 0, plan), "the plan")) return;
        for (const int layer : {1, 2, 3}) {
            if (!trial.done(output->clear(), "clearing") ||
                !trial.done(device.run(options.workers, kernels.scratch_bytes(most), attention),
                            "a call with a plan"))
                return;
            const auto result = trial.keep(output->read(), "outputs");
            if (!result) return;
            trial.expect_none(bit_difference(*result, *expected), "call {} of a plan; {}", layer,
                              describe(batch, options));
        }
        if (!trial.done(device.check_guards(memory->data(), memory->bytes()), "the plan")) return;
    }
}

// Partial results that the workspace does not hold at once are made by several launches: rows of
// all masks, lengths and widths, cut between blocks of packed rows wherever the room ends.
void check_launches(Trial& trial) {
    const int heads = trial.random.one_of({3, 16, 40, 128});
    std::vector<Row> rows = hostile_rows(trial.random, heads, 10000);
    const int longer = trial.random.between(1, 4);
    for (int count = 0; count < longer; ++count) {
        // Every other one has many blocks of packed rows, so that rows are cut too.
        const bool wide = count % 2 == 0;
        const int keys = trial.random.between(200, wide ? 500 : heads > 16 ? 1200 : 2300);
        const int least = wide ? 64 / heads + 2 : 1;
        const int tokens = std::max(least, affordable_tokens(trial, heads, keys, 100000, 40));
        const auto mask = static_cast<MaskKind>(trial.random.between(0, 3));
        Row row = make_row(trial.random, mask, heads, tokens, keys + tokens);
        if (mask == MaskKind::tree) grow_tree(trial.random, row, trial.random.one_of(kShapes));
        if (mask == MaskKind::dense) punch_holes(trial.random, row, 0.7);
        const int place = trial.random.between(0, static_cast<int>(rows.size()));
        rows.insert(rows.begin() + place, std::move(row));
    }
    const Batch batch(trial.format(), heads, rows, trial.any_layout());
    RunOptions options = invariant_options(trial);
    options.partial_bytes = 0;
    const auto expected = trial.run(batch, options);
    for (const std::int64_t bytes : {60'000, 130'000, 300'000, 700'000, 1'500'000, 4'000'000}) {
        options.partial_bytes = bytes;
        options.multiprocessors = trial.any_multiprocessors();
        const auto result = trial.run(batch, options);
        if (!expected || !result) return;
        trial.expect_none(bit_difference(*result, *expected), "{} bytes at once; {}", bytes,
                          describe(batch, options));
    }
}

// A row alone, the batch, and the batch backwards on other pages.
void check_row_invariant(Trial& trial) {
    const int heads = trial.any_heads();
    std::vector<Row> rows = hostile_rows(trial.random, heads, 15000);
    const int tokens = heads > 32 ? 5 : 20;
    const Row whole = make_row(trial.random, MaskKind::causal, heads, tokens,
                               tokens + trial.random.between(0, 150));
    rows.push_back(whole);
    const Layout layout = trial.any_layout();
    RunOptions options = invariant_options(trial);
    const auto together = run_rows(trial, rows, heads, layout, options);
    std::vector<Row> reversed(rows.rbegin(), rows.rend());
    vary_machine(trial, options);
    const auto backwards = run_rows(trial, reversed, heads, other_layout(trial, layout), options);
    if (!together || !backwards) return;
    std::int64_t total = 0;
    for (const Row& row : rows) total += row.tokens;
    std::int64_t first = 0;
    for (const Row& row : rows) {
        vary_machine(trial, options);
        const auto alone = run_rows(trial, {row}, heads, other_layout(trial, layout), options);
        if (!alone) return;
        for (int i = 0; i < row.tokens; ++i) {
            trial.expect_none(bit_difference(*alone, i, *together, first + i),
                              "{} heads, token {} of a row of {} over {} keys, alone and in a "
                              "batch",
                              heads, i, row.tokens, row.keys);
            trial.expect_none(
                bit_difference(*backwards, total - first - row.tokens + i, *together, first + i),
                "{} heads, token {} of a row of {} over {} keys, in another batch", heads, i,
                row.tokens, row.keys);
        }
        first += row.tokens;
    }
    // q_len: the last row again, in chunks.
    const int chunk = trial.random.between(1, 9);
    std::vector<Row> chunks;
    for (int at = 0; at < whole.tokens; at += chunk)
        chunks.push_back(chunk_of(whole, heads, at, std::min(chunk, whole.tokens - at)));
    const auto parts = run_rows(trial, chunks, heads, other_layout(trial, layout), options);
    if (!parts) return;
    for (int i = 0; i < whole.tokens; ++i)
        trial.expect_none(bit_difference(*parts, i, *together, total - whole.tokens + i),
                          "{} heads, token {} of {} over {} keys in chunks of {}", heads, i,
                          whole.tokens, whole.keys, chunk);
}

void check_chain_equals_causal(Trial& trial) {
    const int heads = trial.any_heads();
    std::vector<Row> causal;
    std::vector<Row> trees;
    for (int count = 0; count < 12; ++count) {
        const int keys = hostile_length(trial.random, 600);
        causal.push_back(make_row(trial.random, MaskKind::causal, heads,
                                  affordable_tokens(trial, heads, keys, 20000, 64), keys));
        trees.push_back(causal.back());
        trees.back().mask = MaskKind::tree;
        grow_tree(trial.random, trees.back(), Shape::chain);
    }
    const Layout layout = trial.any_layout();
    RunOptions options = invariant_options(trial);
    const auto expected = trial.run(Batch(trial.format(), heads, causal, layout), options);
    vary_machine(trial, options);
    const auto result = trial.run(Batch(trial.format(), heads, trees, layout), options);
    if (!expected || !result) return;
    for (std::int64_t token = 0; token < result->tokens(); ++token)
        trial.expect_none(bit_difference(*result, token, *expected, token),
                          "{} heads, token {} of chains and causal rows", heads, token);
}

void check_path_invariant(Trial& trial) {
    const int heads = trial.any_heads();
    std::vector<Row> rows;
    for (const Shape shape : kShapes) {
        const int keys = hostile_length(trial.random, 600);
        rows.push_back(make_row(trial.random, MaskKind::tree, heads,
                                affordable_tokens(trial, heads, keys, 20000, 32), keys));
        grow_tree(trial.random, rows.back(), shape);
    }
    rows.push_back(
        make_row(trial.random, MaskKind::dense, heads, 2, hostile_length(trial.random, 600)));
    punch_holes(trial.random, rows.back(), 0.6);
    rows.push_back(make_row(trial.random, MaskKind::causal, heads, heads > 32 ? 2 : 9,
                            9 + hostile_length(trial.random, 200), Spread::peaked));
    // Columns of values so small that their sums underflow: a hidden key must not even turn the
    // sign of a zero.
    for (Row& row : rows)
        for (std::size_t at = 0; at < row.key.size(); ++at)
            if (at % kKey % 7 == 0) row.key[at] *= 2e-38f;
    std::vector<Row> alone;
    for (const Row& row : rows)
        for (int i = 0; i < row.tokens; ++i) alone.push_back(compacted(row, heads, i));
    const Layout layout = trial.any_layout();
    RunOptions options = invariant_options(trial);
    const auto expected = run_rows(trial, alone, heads, layout, options);
    vary_machine(trial, options);
    const auto result = run_rows(trial, rows, heads, other_layout(trial, layout), options);
    if (!expected || !result) return;
    std::int64_t token = 0;
    for (const Row& row : rows)
        for (int i = 0; i < row.tokens; ++i, ++token)
            trial.expect_none(bit_difference(*result, token, *expected, token),
                              "{} heads, token {} of a {} row of {} tokens (tail {}) over {} keys "
                              "against its {} visible keys alone",
                              heads, i,
                              row.mask == MaskKind::tree    ? "tree"
                              : row.mask == MaskKind::dense ? "dense"
                                                            : "causal",
                              row.tokens, row.tail, row.keys,
                              alone[static_cast<std::size_t>(token)].keys);
}

// Splits change their length with the number of visible keys, and a row's tokens fall on both
// sides: a prompt's tail whole and in chunks, and a tree against its tokens' paths alone.
void check_split_thresholds(Trial& trial) {
    const int rule = trial.random.between(0, kSplitRules - 2);
    const auto limit = static_cast<int>(split_rule(rule).most_keys);
    const int heads = trial.random.one_of({1, 3, 16});
    const int tokens = trial.random.between(65, heads == 16 ? 90 : 256);
    const Row whole = make_row(trial.random, MaskKind::causal, heads, tokens,
                               limit + trial.random.between(1, tokens - 1));
    Row tree =
        make_row(trial.random, MaskKind::tree, heads, 12, limit + trial.random.between(-2, 12));
    grow_tree(trial.random, tree, trial.random.one_of(kShapes));
    const Layout layout = trial.any_layout();
    RunOptions options = invariant_options(trial);
    const auto expected = run_rows(trial, {whole, tree}, heads, layout, options);
    std::vector<Row> parts;
    for (int at = 0, count = 0; at < tokens; at += count) {
        count = std::min(trial.random.between(1, 130), tokens - at);
        parts.push_back(chunk_of(whole, heads, at, count));
    }
    for (int i = 0; i < tree.tokens; ++i) parts.push_back(compacted(tree, heads, i));
    vary_machine(trial, options);
    const auto result = run_rows(trial, parts, heads, other_layout(trial, layout), options);
    if (!expected || !result) return;
    for (int token = 0; token < tokens + tree.tokens; ++token)
        trial.expect_none(bit_difference(*result, token, *expected, token),
                          "{} heads, token {} of {} over {} keys and a tree of {} over {}, whole "
                          "and in parts",
                          heads, token, tokens, whole.keys, tree.tokens, tree.keys);
    vary_machine(trial, options);
    const auto single =
        run_rows(trial, one_by_one(tree, heads), heads, other_layout(trial, layout), options);
    if (!single) return;
    for (int token = 0; token < tree.tokens; ++token)
        trial.expect_none(bit_difference(*single, token, *expected, tokens + token),
                          "{} heads, token {} of a tree of {} over {} keys, as a row of its own",
                          heads, token, tree.tokens, tree.keys);
}

namespace {

// A token's own keys and query, in one of the forms that a step may have it in: alone, as a node of
// its tree, under a dense mask that says the same, and at the end of a longer row.
struct Composed {
    Row row;
    int token = 0;
};
Composed composed(Trial& trial, const Row& tree, int token, int heads) {
    Row alone = compacted(tree, heads, token);
    switch (trial.random.between(0, 3)) {
        case 0:
            return {alone, 0};
        case 1:
            return {tree, token};
        case 2: {
            Row dense = tree;
            dense.mask = MaskKind::dense;
            dense.dense.clear();
            for (int i = 0; i < tree.tokens; ++i)
                for (int c = 0; c < tree.keys; ++c) dense.dense.push_back(sees(tree, i, c) ? 1 : 0);
            return {dense, token};
        }
        default: {
            const int tokens = trial.random.between(1, std::clamp(alone.keys, 1, 64 / heads + 5));
            Row chunk = make_row(trial.random, MaskKind::causal, heads, tokens, alone.keys);
            chunk.key = alone.key;
            std::copy(alone.query.begin(), alone.query.end(),
                      chunk.query.end() - static_cast<std::ptrdiff_t>(alone.query.size()));
            return {chunk, tokens - 1};
        }
    }
}

}  // namespace

// One token in any company: form, neighbours, place among them, pages and multiprocessors.
void check_compositions(Trial& trial) {
    constexpr int kCompositions = 8;
    const int heads = trial.random.one_of({1, 3, 16});
    const int tokens = trial.random.between(1, 5);
    int keys = tokens + hostile_length(trial.random, 300);
    const int rule = trial.random.between(0, 2 * kSplitRules - 1);
    if (heads < 16 && rule < kSplitRules - 1)  // near where the length of splits changes
        keys = static_cast<int>(split_rule(rule).most_keys) + trial.random.between(-2, tokens + 2);
    else if (heads == 1 && rule == kSplitRules - 1)  // more splits than one warp merges
        keys = trial.random.between(6200, 9000);
    Row tree = make_row(trial.random, MaskKind::tree, heads, tokens, keys);
    grow_tree(trial.random, tree, trial.random.one_of(kShapes));
    const int token = trial.random.between(0, tokens - 1);
    const Layout layout = trial.any_layout();
    RunOptions options = invariant_options(trial);
    const auto expected = run_rows(trial, {compacted(tree, heads, token)}, heads, layout, options);
    for (int count = 0; count < kCompositions; ++count) {
        std::vector<Row> rows = hostile_rows(trial.random, heads, 3000);
        const Composed own = composed(trial, tree, token, heads);
        const int place = trial.random.between(0, static_cast<int>(rows.size()));
        std::int64_t at = own.token;
        for (int row = 0; row < place; ++row) at += rows[static_cast<std::size_t>(row)].tokens;
        rows.insert(rows.begin() + place, own.row);
        vary_machine(trial, options);
        const auto result = run_rows(trial, rows, heads, other_layout(trial, layout), options);
        if (!expected || !result) return;
        trial.expect_none(bit_difference(*result, at, *expected, 0),
                          "{} heads, token {} of a {} row of {} tokens over {} keys, in place {} "
                          "of {} rows, {} multiprocessors",
                          heads, own.token,
                          own.row.mask == MaskKind::tree    ? "tree"
                          : own.row.mask == MaskKind::dense ? "dense"
                                                            : "causal",
                          own.row.tokens, own.row.keys, place, rows.size(),
                          options.multiprocessors);
    }
}

// Drafting grows a tree level by level: each level is a row whose tail holds the levels before.
// Verifying the whole tree in one row must give the same bits.
void check_draft_levels(Trial& trial) {
    const int heads = trial.any_heads();
    std::vector<int> parent = {-1};
    std::vector<int> level_begin = {0};
    while (parent.size() < 40) {
        const int begin = level_begin.back();
        const int end = static_cast<int>(parent.size());
        level_begin.push_back(end);
        const int width = std::min(trial.random.between(1, 9), 64 - end);
        for (int node = 0; node < width; ++node)
            parent.push_back(trial.random.between(begin, end - 1));
    }
    const int nodes = static_cast<int>(parent.size());
    level_begin.push_back(nodes);
    const int history = hostile_length(trial.random, std::clamp(80000 / (heads * nodes), 8, 400));
    Row whole = make_row(trial.random, MaskKind::tree, heads, nodes, history + nodes);
    whole.words = ancestor_words(parent);
    std::vector<Row> levels;
    for (std::size_t level = 0; level + 1 < level_begin.size(); ++level) {
        const int begin = level_begin[level];
        const int end = level_begin[level + 1];
        Row row = chunk_of(whole, heads, begin, end - begin);
        row.mask = MaskKind::tree;
        row.tail = end;
        row.words.assign(whole.words.begin() + begin, whole.words.begin() + end);
        levels.push_back(std::move(row));
    }
    const Layout layout = trial.any_layout();
    RunOptions options = invariant_options(trial);
    const auto expected = run_rows(trial, {whole}, heads, layout, options);
    vary_machine(trial, options);
    const auto result = run_rows(trial, levels, heads, other_layout(trial, layout), options);
    vary_machine(trial, options);
    const auto single =
        run_rows(trial, one_by_one(whole, heads), heads, other_layout(trial, layout), options);
    if (!expected || !result || !single) return;
    for (int node = 0; node < nodes; ++node) {
        trial.expect_none(bit_difference(*result, node, *expected, node),
                          "{} heads, node {} of {} after {} slots, by levels and at once", heads,
                          node, nodes, history);
        trial.expect_none(bit_difference(*single, node, *expected, node),
                          "{} heads, node {} of {} after {} slots, as a row of its own and at once",
                          heads, node, nodes, history);
    }
}

}  // namespace espalier::conformance
