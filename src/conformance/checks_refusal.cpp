// SPDX-License-Identifier: Apache-2.0
// Guarantee 7: what is not implemented, or contradicts itself, returns an error that names it and
// writes nothing. Arrays in device memory cannot be looked into before a launch, so what they hold
// is only refused on the host.
#include <algorithm>

#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

struct Refusal {
    std::string_view name;
    bool host_only;
    std::function<void(AbsorbedCall&)> spoil;
    std::string says;
};

constexpr std::int32_t kBadPages[] = {999, 999, 999, 999, 999, 999};
constexpr std::int32_t kLongTail[] = {2, 65, 1};
constexpr std::int32_t kShortTail[] = {2, 2, 1};
constexpr std::int32_t kFalling[] = {0, 2, 1, 6};
constexpr std::int32_t kNegative[] = {-1, 2, 5, 6};
constexpr std::int32_t kBadTables[] = {0, 3, -1};
constexpr std::int32_t kNegativeLength[] = {-4, 20, 20};

// The batch: rows of 2, 3 and 1 tokens (causal, tree, dense) over 70, 20 and 20 keys, pages of 64.
std::vector<Refusal> refusals(const KvPages& kv) {
    const std::int64_t page = page_stride_bytes(kv.format, 64, kv.dims);
    return {
        {"no heads", false, [](AbsorbedCall& c) { c.heads = 0; }, "0 heads"},
        {"many heads", false, [](AbsorbedCall& c) { c.heads = 129; }, "129 heads"},
        {"output dtype", false, [](AbsorbedCall& c) { c.out_dtype = DType::e4m3; }, "e4m3"},
        {"page size", false, [](AbsorbedCall& c) { c.kv.page_tokens = 48; }, "48 tokens"},
        {"page stride", false, [](AbsorbedCall& c) { c.kv.page_stride -= 1; },
         fmt::format("{} bytes, the page stride is {}", page, page - 1)},
        {"no pages", false, [](AbsorbedCall& c) { c.kv.data = nullptr; }, "no address"},
        {"rank", false, [](AbsorbedCall& c) { c.rows.dcp_rank = 1; }, "rank 1 of 1"},
        {"first slot", false, [](AbsorbedCall& c) { c.rows.first_slot = 2; }, "first_slot 2"},
        {"global length", false, [](AbsorbedCall& c) { c.rows.dcp_world = 2; }, "global_kv_len"},
        {"no output", false, [](AbsorbedCall& c) { c.out = nullptr; }, "without out"},
        {"no query", false, [](AbsorbedCall& c) { c.q = nullptr; }, "without q"},
        {"rows", false, [](AbsorbedCall& c) { c.rows.rows = -1; }, "-1 rows"},
        {"no table", false, [](AbsorbedCall& c) { c.rows.block_table = nullptr; }, "block_table"},
        {"no lengths", false, [](AbsorbedCall& c) { c.rows.kv_len = nullptr; }, "kv_len"},
        {"no starts", false, [](AbsorbedCall& c) { c.rows.q_indptr = nullptr; }, "q_indptr"},
        {"mask address", false, [](AbsorbedCall& c) { c.rows.custom_mask = nullptr; },
         "dense mask"},
        {"no offsets", false, [](AbsorbedCall& c) { c.rows.custom_mask_offset = nullptr; },
         "without custom_mask_offset"},
        {"page id", true, [](AbsorbedCall& c) { c.rows.block_table = kBadPages; }, "page 999 of"},
        {"short table", true, [](AbsorbedCall& c) { c.rows.block_stride = 1; },
         "need 2 pages, its block table has 1"},
        {"long tail", true, [](AbsorbedCall& c) { c.rows.tail_len = kLongTail; }, "tail of 65"},
        {"short tail", true, [](AbsorbedCall& c) { c.rows.tail_len = kShortTail; }, "tail of 2"},
        {"no words", true, [](AbsorbedCall& c) { c.rows.words = nullptr; }, "without words"},
        {"falling", true, [](AbsorbedCall& c) { c.rows.q_indptr = kFalling; }, "falls from 2 to 1"},
        {"negative start", true, [](AbsorbedCall& c) { c.rows.q_indptr = kNegative; }, "-1 to 6"},
        {"negative length", true, [](AbsorbedCall& c) { c.rows.kv_len = kNegativeLength; },
         "kv_len -4"},
        {"token end", true, [](AbsorbedCall& c) { c.rows.token_end = 5; },
         "0 to 6 lie outside 0 to 5"},
        {"q capacity", true, [](AbsorbedCall& c) { c.rows.max_q_len = 2; },
         "more than max_q_len 2"},
        {"tables below 0", false, [](AbsorbedCall& c) { c.rows.table_rows = -1; }, "table_rows -1"},
        {"splits below 0", false, [](AbsorbedCall& c) { c.rows.total_splits = -1; },
         "total_splits -1"},
        {"multiprocessors", false, [](AbsorbedCall& c) { c.multiprocessors = -1; },
         "-1 multiprocessors"},
        {"workspace", false, [](AbsorbedCall& c) { c.partial_bytes = -1; },
         "-1 bytes for partial results"},
        {"block table", true,
         [](AbsorbedCall& c) {
             c.rows.table_row = kBadTables;
             c.rows.table_rows = 3;
         },
         "row 1 has block table 3 of 3"},
        {"splits", true, [](AbsorbedCall& c) { c.rows.total_splits = 5; },
         "have 6 splits, more than total_splits 5"},
        {"kv capacity", true, [](AbsorbedCall& c) { c.rows.max_kv_len = 69; }, "max_kv_len 69"},
    };
}

std::vector<Row> three_rows(Random& random, int heads) {
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::causal, heads, 2, 70));
    rows.push_back(make_row(random, MaskKind::tree, heads, 3, 20));
    rows.push_back(make_row(random, MaskKind::dense, heads, 1, 20));
    punch_holes(random, rows.back(), 0.5);
    return rows;
}

// Every pair the contract does not allow is refused with both names; a pair that it allows and the
// device does not take, with the cache's.
void expect_pairs_refused(Trial& trial, const PlacedBatch& placed, const Batch& batch,
                          PlacedOutput& output, const RunOptions& options) {
    Device& device = trial.device();
    const std::vector<DType> legal = legal_queries(trial.format());
    const std::vector<DType>& taken = trial.support().queries;
    for (const DType query : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
        if (std::count(taken.begin(), taken.end(), query) > 0) continue;
        AbsorbedCall call = absorbed_call(placed, batch, output, options);
        call.q_dtype = query;
        const auto done = device.run(
            1, device.kernels().scratch_bytes(capacities_of(batch, options)),
            [&](OpContext& context) { return device.kernels().absorbed(context, call); });
        const bool allowed = std::count(legal.begin(), legal.end(), query) > 0;
        const std::string message = done ? "no error" : done.error().message;
        trial.expect(!done && message.find(name_of(trial.format())) != std::string::npos &&
                         (allowed || message.find(name_of(query)) != std::string::npos),
                     "{} queries over a {} cache: \"{}\" does not name what is refused",
                     name_of(query), name_of(trial.format()), message);
    }
}

}  // namespace

void check_no_silent_no_op(Trial& trial) {
    Device& device = trial.device();
    const int heads = 2;
    Layout layout = trial.any_layout();
    layout.page_tokens = 64;
    layout.spare_entries = 0;
    layout.by_slot = layout.tight = false;
    layout.first_slot = 0;
    RunOptions options = trial.any_options();
    options.workers = 1;
    const Batch batch(trial.format(), heads, three_rows(trial.random, heads), layout);
    auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    auto output =
        trial.keep(PlacedOutput::place(device, batch.tokens(), heads, trial.dims().latent, options),
                   "placing");
    if (!placed || !output) return;
    for (const Refusal& refusal : refusals(batch.kv())) {
        if (refusal.host_only && !device.is_host()) continue;
        AbsorbedCall call = absorbed_call(*placed, batch, *output, options);
        refusal.spoil(call);
        const auto done = device.run(
            1, device.kernels().scratch_bytes(capacities_of(batch, options)),
            [&](OpContext& context) { return device.kernels().absorbed(context, call); });
        const std::string message = done ? "no error" : done.error().message;
        trial.expect(!done && message.find(refusal.says) != std::string::npos,
                     "{}: \"{}\" does not say \"{}\"", refusal.name, message, refusal.says);
    }
    expect_pairs_refused(trial, *placed, batch, *output, options);
    if (const auto result = trial.keep(output->read(), "outputs"))
        trial.expect(std::all_of(result->out.begin(), result->out.end(),
                                 [](float value) { return value != value; }),
                     "a refused call wrote to its output");
}

}  // namespace espalier::conformance
