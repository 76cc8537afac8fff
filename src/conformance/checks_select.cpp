// SPDX-License-Identifier: Apache-2.0
// Guarantee 10: what a token chooses is a function of its own index query and of the keys it sees.
// Small whole numbers make every score exact, so that any device must find the very set that plain
// sorting finds, ties and all; with other numbers a token of a tree must choose as the last token
// of a causal row over its path does.
#include <algorithm>
#include <cmath>

#include "conformance/checks.hpp"
#include "mla/storage.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

struct IndexProblem {
    std::vector<Row> rows;  // masks and lengths; their own keys and queries mean nothing
    int heads = 0;
    std::int64_t width = 0, top_k = 0;
    DType dtype = DType::bf16;
    std::vector<std::vector<float>> keys;              // [row][keys · width]
    std::vector<std::vector<float>> queries, weights;  // [row][tokens · heads (· width)]

    float scale() const { return 0.5f; }
    float weight_scale() const { return 0.25f; }
};

// Whole numbers near 0, most of them 0: many scores are equal, many are 0 from below.
void fill(Random& random, std::vector<float>& values, bool whole) {
    for (float& value : values) {
        value = whole ? static_cast<float>(random.between(-2, 2)) : random.normal();
        if (whole && random.chance(0.6)) value = 0.0f;
    }
}

IndexProblem any_problem(Trial& trial, bool whole) {
    Random& random = trial.random;
    IndexProblem problem;
    problem.heads = random.one_of({1, 2, 7, 16, 33});
    problem.width = random.one_of({64, 96, 128});
    problem.top_k = random.one_of({1, 5, 16, 32});
    problem.dtype = random.chance(0.5) ? DType::f32 : DType::bf16;
    for (Row& row : hostile_rows(random, 1, 3000))
        if (row.mask != MaskKind::dense) problem.rows.push_back(std::move(row));
    // A tree behind a history that is as long as what is chosen, and one that is all tail.
    for (const int history : {static_cast<int>(problem.top_k), 0, 90}) {
        Row tree = make_row(random, MaskKind::tree, 1, 24, history + 40);
        grow_tree(random, tree, history == 90 ? Shape::deep_tail : Shape::random);
        problem.rows.push_back(std::move(tree));
    }
    const auto sized = [](std::int64_t count) {
        return std::vector<float>(static_cast<std::size_t>(count));
    };
    for (const Row& row : problem.rows) {
        problem.keys.push_back(sized(row.keys * problem.width));
        problem.queries.push_back(sized(row.tokens * problem.heads * problem.width));
        problem.weights.push_back(sized(row.tokens * problem.heads));
        for (auto* values :
             {&problem.keys.back(), &problem.queries.back(), &problem.weights.back()})
            fill(random, *values, whole);
        for (float& value : problem.keys.back())
            value = to_float(to_bf16(value));  // alike in both formats
        for (float& value : problem.queries.back()) value = to_float(to_bf16(value));
    }
    return problem;
}

// Lists as a device makes them; [tokens] of the batch.
struct Chosen {
    std::vector<std::int32_t> slots, count;
    std::vector<std::uint8_t> nonfinite;
    std::int64_t top_k = 0;

    std::vector<std::int32_t> of(std::int64_t token) const {
        const auto first = slots.begin() + token * top_k;
        return {first, first + std::max(count[static_cast<std::size_t>(token)], 0)};
    }
};

// Index keys in the pages of a batch's rows, NaN in all other slots.
std::vector<std::byte> index_pages(const IndexProblem& problem, const Batch& batch,
                                   const KvPages& pages) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(pages.page_count * pages.page_stride),
                                 std::byte{0xff});
    KvPages host = pages;
    host.data = bytes.data();
    for (std::size_t b = 0; b < problem.rows.size(); ++b)
        for (int c = 0; c < problem.rows[b].keys; ++c)
            write_slot(host, batch.slot(b, c), problem.keys[b].data() + c * problem.width, nullptr);
    return bytes;
}

// All tokens' values of one kind, laid as the batch's tokens are; NaN for those of no row.
std::vector<float> by_token(const Batch& batch, const std::vector<std::vector<float>>& of_row,
                            std::int64_t columns) {
    std::vector<float> all(static_cast<std::size_t>(batch.tokens() * columns), std::nanf(""));
    for (std::size_t b = 0; b < of_row.size(); ++b)
        std::ranges::copy(of_row[b], all.begin() + batch.first_token(b) * columns);
    return all;
}

std::optional<Chosen> choose(Trial& trial, const IndexProblem& problem, const Layout& layout,
                             int workers) {
    Device& device = trial.device();
    const Batch batch(KvFormat::bf16, 1, problem.rows, layout);
    const auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    if (!placed) return std::nullopt;
    SelectCall call;
    call.rows = placed->rows();
    call.heads = problem.heads;
    call.weight_scale = problem.weight_scale();
    call.scale = problem.scale();
    call.top_k = problem.top_k;
    call.q_dtype = problem.dtype;
    call.keys.format = problem.dtype == DType::f32 ? KvFormat::f32 : KvFormat::bf16;
    call.keys.dims = {problem.width, 0};
    call.keys.page_tokens = layout.page_tokens;
    call.keys.page_stride = page_stride_bytes(call.keys.format, layout.page_tokens, call.keys.dims);
    call.keys.page_count = batch.kv().page_count;

    std::vector<Buffer> memory;
    const auto put = [&](const void* values, std::size_t bytes) -> std::byte* {
        auto buffer = trial.keep(device.allocate(bytes), "placing");
        if (!buffer || (values != nullptr &&
                        !trial.done(device.upload(buffer->data(), values, bytes), "placing")))
            return nullptr;
        memory.push_back(std::move(*buffer));
        return memory.back().data();
    };
    const auto tokens = static_cast<std::size_t>(batch.tokens());
    const auto pages = index_pages(problem, batch, call.keys);
    const auto query =
        narrowed(by_token(batch, problem.queries, problem.heads * problem.width), problem.dtype);
    const auto weights = by_token(batch, problem.weights, problem.heads);
    Chosen chosen{
        .slots = std::vector<std::int32_t>(tokens * static_cast<std::size_t>(problem.top_k)),
        .count = std::vector<std::int32_t>(tokens),
        .nonfinite = std::vector<std::uint8_t>(tokens, 0),
        .top_k = problem.top_k};
    call.keys.data = put(pages.data(), pages.size());
    call.q = put(query.data(), query.size());
    call.weights = reinterpret_cast<const float*>(put(weights.data(), weights.size() * 4));
    call.nonfinite = reinterpret_cast<std::uint8_t*>(put(chosen.nonfinite.data(), tokens));
    call.lists = {reinterpret_cast<std::int32_t*>(put(nullptr, chosen.slots.size() * 4)),
                  reinterpret_cast<std::int32_t*>(put(nullptr, chosen.count.size() * 4)),
                  problem.top_k};
    if (memory.size() != 6) return std::nullopt;
    Capacities most = batch.capacities(workers, true);
    most.index_heads = problem.heads;
    most.index_width = problem.width;
    const auto select = [&](OpContext& context) { return device.kernels().select(context, call); };
    if (!trial.done(device.run(workers, device.kernels().scratch_bytes(most), select),
                    "choosing keys") ||
        !trial.done(device.download(chosen.slots.data(), memory[4].data(), memory[4].bytes()),
                    "reading") ||
        !trial.done(device.download(chosen.count.data(), memory[5].data(), memory[5].bytes()),
                    "reading") ||
        !trial.done(device.download(chosen.nonfinite.data(), memory[3].data(), tokens), "reading"))
        return std::nullopt;
    for (const Buffer& one : memory)
        if (!trial.done(device.check_guards(one.data(), one.bytes()), "what it was given"))
            return std::nullopt;
    return chosen;
}

double score(const IndexProblem& problem, std::size_t b, int i, int c) {
    double sum = 0.0;
    const std::int64_t width = problem.width;
    for (int h = 0; h < problem.heads; ++h) {
        const std::int64_t head = i * problem.heads + h;
        const float* q = problem.queries[b].data() + head * width;
        const float* key = problem.keys[b].data() + c * width;
        double dot = 0.0;
        for (std::int64_t d = 0; d < width; ++d) dot += double{q[d]} * double{key[d]};
        sum += double{problem.weights[b][static_cast<std::size_t>(head)]} *
               double{problem.weight_scale()} * std::max(0.0, double{problem.scale()} * dot);
    }
    return sum;
}

// Slots of the keys that the token sees.
std::vector<std::int32_t> seen_slots(const Row& row, int i, int first_slot) {
    std::vector<std::int32_t> seen;
    for (int c = 0; c < row.keys; ++c)
        if (sees(row, i, c)) seen.push_back(first_slot + c);
    return seen;
}

std::vector<std::int32_t> best(const IndexProblem& problem, std::size_t b, int i, int first_slot) {
    std::vector<std::int32_t> seen = seen_slots(problem.rows[b], i, first_slot);
    if (std::ssize(seen) <= problem.top_k) return {};
    std::vector<std::pair<double, std::int32_t>> ranked;  // ascending: best score, lowest slot
    for (const std::int32_t slot : seen)
        ranked.emplace_back(-score(problem, b, i, slot - first_slot), slot);
    std::ranges::sort(ranked);
    seen.clear();
    for (std::int64_t k = 0; k < problem.top_k; ++k)
        seen.push_back(ranked[static_cast<std::size_t>(k)].second);
    std::ranges::sort(seen);
    return seen;
}

}  // namespace

void check_select(Trial& trial) {
    IndexProblem problem = any_problem(trial, true);
    const Layout layout = trial.any_layout();
    const auto chosen = choose(trial, problem, layout, trial.random.between(1, 3));
    if (!chosen) return;
    const Batch batch(KvFormat::bf16, 1, problem.rows, layout);
    for (std::size_t b = 0; b < problem.rows.size(); ++b)
        for (int i = 0; i < problem.rows[b].tokens; ++i) {
            const std::int64_t token = batch.first_token(b) + i;
            const auto expected = best(problem, b, i, layout.first_slot);
            const std::int32_t count =
                expected.empty() ? -1 : static_cast<std::int32_t>(problem.top_k);
            trial.expect(chosen->count[static_cast<std::size_t>(token)] == count &&
                             chosen->of(token) == expected,
                         "row {} token {}: the best {} of {} heads of {}", b, i, problem.top_k,
                         problem.heads, problem.width);
            trial.expect(chosen->nonfinite[static_cast<std::size_t>(token)] == 0,
                         "row {} token {} is flagged", b, i);
        }
    for (auto token = static_cast<std::size_t>(batch.view().q_indptr[batch.view().rows]);
         token < chosen->count.size(); ++token)
        trial.expect(chosen->count[token] == -1, "padding {} has a list", token);
}

// NaN in a query flags its token, if that chooses at all, and changes no other's choice.
void check_select_flags(Trial& trial) {
    IndexProblem problem = any_problem(trial, true);
    const Layout layout = trial.any_layout();
    const auto expected = choose(trial, problem, layout, 2);
    std::vector<std::pair<std::size_t, int>> broken;
    for (std::size_t b = 0; b < problem.rows.size(); ++b)
        for (int i = 0; i < problem.rows[b].tokens; ++i) {
            if (!trial.random.chance(0.2)) continue;
            broken.emplace_back(b, i);
            problem.queries[b][static_cast<std::size_t>(i * problem.heads * problem.width)] =
                std::nanf("");
        }
    const auto chosen = choose(trial, problem, layout, 2);
    if (!expected || !chosen) return;
    const Batch batch(KvFormat::bf16, 1, problem.rows, layout);
    for (std::int64_t token = 0; token < batch.tokens(); ++token) {
        const bool own = std::ranges::any_of(broken, [&](const auto& at) {
            return batch.first_token(at.first) + at.second == token;
        });
        const auto at = static_cast<std::size_t>(token);
        trial.expect(chosen->nonfinite[at] == (own && chosen->count[at] >= 0 ? 1 : 0),
                     "token {} is flagged {}", token, chosen->nonfinite[at]);
        if (!own) trial.expect(chosen->of(token) == expected->of(token), "token {}", token);
    }
}

// Each token as a causal row of its own over the keys that it sees.
void check_select_path(Trial& trial) {
    const IndexProblem problem = any_problem(trial, false);
    const Layout layout = trial.any_layout();
    IndexProblem alone = problem;
    alone.rows.clear();
    alone.keys.clear();
    alone.queries.clear();
    alone.weights.clear();
    std::vector<std::vector<std::int32_t>> seen;
    const auto part = [](const std::vector<float>& values, std::int64_t first, std::int64_t count) {
        return std::vector<float>(values.begin() + first, values.begin() + first + count);
    };
    for (std::size_t b = 0; b < problem.rows.size(); ++b)
        for (int i = 0; i < problem.rows[b].tokens; ++i) {
            const std::int64_t query = problem.heads * problem.width;
            alone.rows.push_back(compacted(problem.rows[b], 1, i));
            seen.push_back(seen_slots(problem.rows[b], i, 0));
            std::vector<float> keys;
            for (const std::int32_t c : seen.back()) {
                const auto key = part(problem.keys[b], c * problem.width, problem.width);
                keys.insert(keys.end(), key.begin(), key.end());
            }
            alone.keys.push_back(std::move(keys));
            alone.queries.push_back(part(problem.queries[b], i * query, query));
            alone.weights.push_back(part(problem.weights[b], i * problem.heads, problem.heads));
        }
    Layout other = trial.any_layout();
    const auto chosen = choose(trial, problem, layout, trial.random.between(1, 3));
    const auto expected = choose(trial, alone, other, trial.random.between(1, 3));
    if (!chosen || !expected) return;
    const Batch batch(KvFormat::bf16, 1, problem.rows, layout);
    const Batch single(KvFormat::bf16, 1, alone.rows, other);
    std::size_t index = 0;
    for (std::size_t b = 0; b < problem.rows.size(); ++b)
        for (int i = 0; i < problem.rows[b].tokens; ++i, ++index) {
            std::vector<std::int32_t> want = expected->of(single.first_token(index));
            for (std::int32_t& slot : want)
                slot = layout.first_slot +
                       seen[index][static_cast<std::size_t>(slot - other.first_slot)];
            trial.expect(chosen->of(batch.first_token(b) + i) == want,
                         "row {} token {} chooses otherwise than alone", b, i);
        }
}

}  // namespace espalier::conformance
