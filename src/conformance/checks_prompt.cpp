// SPDX-License-Identifier: Apache-2.0
// The decompressed entry: accuracy, and guarantees 1, 2, 4 and 5 (above all: the same prompt in any
// chunks gives the same bits).
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "conformance/checks.hpp"
#include "conformance/prompt.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

Layout prompt_layout(Trial& trial) {
    Layout layout = trial.any_layout();
    const std::vector<DType>& queries = trial.support().prompt_queries;
    layout.query = queries[trial.random.bits() % queries.size()];
    return layout;
}

WeightCode any_weights(Trial& trial) {
    if (!trial.device().is_host()) return WeightCode::bf16;
    return trial.random.one_of(
        {WeightCode::f32, WeightCode::f16, WeightCode::bf16, WeightCode::e4m3});
}

// CUDA has the wider heads for bf16 queries only: tests/mla/cuda/decompressed_test.cpp tries them.
std::span<const HeadDims> all_dims(Trial& trial) {
    return std::span(kHeadDims).first(trial.device().is_host() ? kHeadDimsCount : 1);
}

// Those that models have with keys of this width.
std::vector<HeadDims> published_dims(Trial& trial) {
    std::vector<HeadDims> dims;
    for (const HeadDims& heads : all_dims(trial))
        if ((heads == HeadDims{64, 128}) == (trial.dims().latent == 256)) dims.push_back(heads);
    return dims;
}

}  // namespace

// f32: as for the absorbed entry, with 512 more roundings in each key and value (√512·2^-25 ≈
// 0.7e-6). 16-bit: the oracle rounds K_nope and V to bf16 after a sum in double, the kernels after
// one in f32; one key element in ~2^9 falls to the other side (f32 sums of 512 terms err by 2^-19
// of a bf16 step's 2^-9 or so), each worth 2^-8 of itself: 1e-4 in all. A row that sees few keys
// feels one of them in its lse: by 2^-8 of that column's share of the score, which is up to 9 /
// √192 where query and key lie three deviations out. (Tensor cores cut sums off, so they flip more
// often than CPUs: 1.35e-3 was seen on an H200.)
void check_prompt_accuracy(Trial& trial) {
    for (std::size_t round = 0; round < std::max<std::size_t>(2, all_dims(trial).size()); ++round) {
        const HeadDims dims = all_dims(trial)[round % all_dims(trial).size()];
        const Prompt prompt(trial.random, any_weights(trial), trial.random.between(1, 3), dims,
                            trial.dims());
        std::vector<Row> rows;
        rows.push_back(prompt.row(trial.random, 20, 20));
        rows.push_back(prompt.row(trial.random, 0, 5));
        rows.push_back(prompt.row(trial.random, 3, 3 + hostile_length(trial.random, 300)));
        rows.push_back(prompt.row(trial.random, 9, 4));
        const Layout layout = prompt_layout(trial);
        const RunOptions options = trial.any_options();
        const auto result =
            trial.keep(prompt.run(trial.device(), trial.format(), rows, layout, options), "prompt");
        const auto oracle = trial.keep(prompt.oracle(trial.format(), rows, layout), "the oracle");
        if (!result || !oracle) return;
        Limits limits = accuracy_limits(trial.format(), Spread::normal, options.out_dtype, 20);
        if (trial.format() != KvFormat::f32) limits.lse += 0x1p-8 * 9 / std::sqrt(192.0);
        trial.expect_close(
            *result, *oracle, limits,
            fmt::format("{} heads of {} + {}, pages of {}, {} output", prompt.heads(), dims.nope,
                        dims.value, layout.page_tokens, name_of(options.out_dtype)));
    }
}

namespace {

void check_chunks(Trial& trial, const HeadDims& dims) {
    const int heads = 2;
    const int tokens = trial.random.between(260, 540);
    const Prompt prompt(trial.random, usual_weights(trial.device(), trial.format()), heads, dims,
                        trial.dims());
    const Row whole = prompt.row(trial.random, tokens, tokens);
    const Layout layout = prompt_layout(trial);
    RunOptions options = trial.any_options();
    const auto expected =
        trial.keep(prompt.run(trial.device(), trial.format(), {whole}, layout, options), "prompt");
    if (!expected) return;
    for (const int chunk : {1, 7, 64, 256}) {
        std::vector<Row> chunks;
        for (int first = 0; first < tokens; first += chunk)
            if (chunk >= 64 || first % 25 == 0 || (first + chunk) / 256 != first / 256)
                chunks.push_back(chunk_of(whole, heads, first, std::min(chunk, tokens - first),
                                          prompt.query_columns()));
        Layout other = trial.any_layout();
        other.query = layout.query;
        other.padding_tokens = 5;
        options.workers = trial.random.between(1, 3);
        const auto result = trial.keep(
            prompt.run(trial.device(), trial.format(), chunks, other, options), "chunks");
        if (!result) return;
        std::int64_t at = 0;
        for (const Row& row : chunks)
            for (int i = 0; i < row.tokens; ++i, ++at)
                trial.expect_none(bit_difference(*result, at, *expected, row.keys - row.tokens + i),
                                  "a prompt of {} in chunks of {}", tokens, chunk);
    }
}

}  // namespace

void check_prompt_invariant(Trial& trial) {
    for (const HeadDims& dims : published_dims(trial)) check_chunks(trial, dims);
}

namespace {

void check_garbage(Trial& trial, const HeadDims& dims) {
    const Prompt prompt(trial.random, usual_weights(trial.device(), trial.format()), 2, dims,
                        trial.dims());
    std::vector<Row> rows;
    rows.push_back(prompt.row(trial.random, 3, 0));
    rows.push_back(prompt.row(trial.random, 5, 2));
    for (const int keys : {1, 15, 16, 33, 200 + trial.random.between(0, 100)})
        rows.push_back(prompt.row(trial.random, std::min(keys, 20), keys));
    Layout layout = prompt_layout(trial);
    layout.poison = 0;
    const RunOptions options = trial.any_options();
    const auto run = [&](const std::vector<Row>& which) {
        return trial.keep(prompt.run(trial.device(), trial.format(), which, layout, options),
                          "prompt");
    };
    const auto expected = run(rows);
    if (!expected) return;
    for (const std::int64_t token : {0, 1, 2, 3, 4, 5})
        trial.expect_none(not_nothing(*expected, token), "prompt of no keys or fewer than tokens");
    for (const std::uint32_t poison : {0xffffffffu, 0x7fc07fc0u, 0x7f807f80u, 0x7c007c00u}) {
        layout.poison = poison;
        if (const auto result = run(rows))
            trial.expect_none(bit_difference(*result, *expected), "poison {:#x}, pages of {}",
                              poison, layout.page_tokens);
    }
    // The last key of a row is hidden from all but its last token, whatever append can write there.
    std::vector<Row> hidden = rows;
    const float largest = trial.format() == KvFormat::fp16 ? 65504.0f : 1e30f;
    std::fill(hidden.back().key.end() - kKey, hidden.back().key.end(), largest);
    const auto result = run(hidden);
    if (!result) return;
    for (std::int64_t token = 0; token < 8 + 1 + 15 + 16 + 20 + 19; ++token)
        trial.expect_none(bit_difference(*result, token, *expected, token),
                          "the largest numbers in a hidden key, token {}", token);
}

}  // namespace

void check_prompt_garbage(Trial& trial) {
    for (const HeadDims& dims : published_dims(trial)) check_garbage(trial, dims);
}

}  // namespace espalier::conformance
