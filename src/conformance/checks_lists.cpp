// SPDX-License-Identifier: Apache-2.0
// Guarantee 9: attention over a list of keys is dense attention over the listed keys in list order,
// bit for bit, whatever the row's mask says; a token without a list keeps the bits that it has
// where nobody has one.
#include <algorithm>

#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

// Lists of a batch's tokens; −1: none.
struct Lists {
    std::vector<std::int32_t> slots, count;
    std::int64_t stride = 0;
};

// Slots in any order, some of them twice, and entries that are no slots of the row.
std::vector<std::int32_t> any_list(Random& random, const Row& row, int first_slot) {
    std::vector<std::int32_t> list(static_cast<std::size_t>(random.between(0, row.keys + 3)));
    for (std::int32_t& slot : list) {
        slot = row.keys > 0 ? first_slot + random.between(0, row.keys - 1) : -1;
        if (random.chance(0.1))
            slot = random.one_of({-1, first_slot - 1, first_slot + row.keys, 1 << 30, -(1 << 30)});
    }
    if (random.chance(0.5)) std::ranges::sort(list);
    return list;
}

// The row of one token over the listed keys, in their order.
Row listed(const Row& row, int heads, int i, const std::vector<std::int32_t>& list,
           int first_slot) {
    Row alone;
    alone.tokens = alone.tail = 1;
    alone.words = {1};
    const auto query = row.query.begin() + i * heads * kKey;
    alone.query.assign(query, query + heads * kKey);
    for (const std::int32_t slot : list) {
        const std::int64_t c = std::int64_t{slot} - first_slot;
        if (c < 0 || c >= row.keys) continue;
        const auto key = row.key.begin() + c * kKey;
        alone.key.insert(alone.key.end(), key, key + kKey);
        ++alone.keys;
    }
    alone.global_keys = alone.keys;
    return alone;
}

std::optional<Result> run_with(Trial& trial, const Batch& batch, const Lists& lists,
                               const RunOptions& options) {
    Device& device = trial.device();
    const auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    auto output = trial.keep(
        PlacedOutput::place(device, batch.tokens(), batch.heads(), batch.kv().dims.latent, options),
        "placing");
    auto slots = trial.keep(device.allocate(lists.slots.size() * 4), "placing");
    auto count = trial.keep(device.allocate(lists.count.size() * 4), "placing");
    if (!placed || !output || !slots || !count ||
        !trial.done(device.upload(slots->data(), lists.slots.data(), slots->bytes()), "placing") ||
        !trial.done(device.upload(count->data(), lists.count.data(), count->bytes()), "placing"))
        return std::nullopt;
    AbsorbedCall call = absorbed_call(*placed, batch, *output, options);
    call.lists = {slots->as<std::int32_t>(), count->as<std::int32_t>(), lists.stride};
    const std::size_t scratch = device.kernels().scratch_bytes(capacities_of(batch, options));
    const auto attention = [&](OpContext& context) {
        return device.kernels().absorbed(context, call);
    };
    if (!trial.done(device.run(options.workers, scratch, attention), describe(batch, options)))
        return std::nullopt;
    return trial.keep(output->read(), "outputs");
}

}  // namespace

void check_lists(Trial& trial) {
    const int heads = trial.any_heads();
    Layout layout = trial.any_layout();
    if (layout.query == DType::e4m3) layout.query = DType::bf16;  // stored by the batch's largest
    RunOptions options = trial.any_options();
    options.invariant = true;
    const std::vector<Row> rows = hostile_rows(trial.random, heads, 3000);
    const Batch batch(trial.format(), heads, rows, layout);

    Lists lists;
    std::vector<Row> alone;
    std::vector<std::pair<std::int64_t, std::int64_t>> tokens;  // here, and among those alone
    std::vector<std::vector<std::int32_t>> of_token(static_cast<std::size_t>(batch.tokens()));
    lists.count.assign(static_cast<std::size_t>(batch.tokens()), -1);
    for (std::size_t b = 0; b < rows.size(); ++b)
        for (int i = 0; i < rows[b].tokens; ++i) {
            if (trial.random.chance(0.3)) continue;
            const auto token = static_cast<std::size_t>(batch.first_token(b) + i);
            of_token[token] = any_list(trial.random, rows[b], layout.first_slot);
            lists.count[token] = static_cast<std::int32_t>(of_token[token].size());
            lists.stride = std::max<std::int64_t>(lists.stride, lists.count[token] + 1);
            tokens.emplace_back(static_cast<std::int64_t>(token), std::ssize(alone));
            alone.push_back(listed(rows[b], heads, i, of_token[token], layout.first_slot));
        }
    lists.slots.assign(static_cast<std::size_t>(batch.tokens() * lists.stride), 0);
    for (std::size_t token = 0; token < of_token.size(); ++token)
        std::ranges::copy(of_token[token],
                          lists.slots.begin() + static_cast<std::ptrdiff_t>(token) * lists.stride);

    const auto result = run_with(trial, batch, lists, options);
    const auto masked = trial.run(batch, options);
    if (!result || !masked) return;
    for (std::int64_t token = 0; token < batch.tokens(); ++token)
        if (lists.count[static_cast<std::size_t>(token)] < 0)
            trial.expect_none(bit_difference(*result, token, *masked, token),
                              "token {} without a list; {}", token, describe(batch, options));
    if (alone.empty()) return;
    layout.first_slot = 0;
    const Batch dense(trial.format(), heads, alone, layout);
    const auto expected = trial.run(dense, options);
    if (!expected) return;
    for (const auto& [token, row] : tokens)
        trial.expect_none(bit_difference(*result, token, *expected,
                                         dense.first_token(static_cast<std::size_t>(row))),
                          "token {} by its list; {}", token, describe(batch, options));
}

}  // namespace espalier::conformance
