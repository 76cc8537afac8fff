// SPDX-License-Identifier: Apache-2.0
#include "engine/calibration.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "batch/batch_builder.hpp"

namespace espalier::engine {
namespace {

constexpr schedule::Time kMostTime = 1'500'000'000;  // stops measuring after 1.5 s
constexpr int kPasses = 3;                           // the fit drops the odd slow one

struct Shape {
    std::int64_t rows, tokens;  // tokens of each row
};
// One decode and trees of it; then several decodes, which tell the cost of a row from a token's.
constexpr std::array<Shape, 11> kShapes = {
    {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {1, 16}, {1, 32}, {1, 64}, {4, 1}, {16, 1}, {4, 16}, {2, 64}}};

Expected<double> measure(Target& target, const Clock& clock, const Shape& shape) {
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.tokens), 0);
    std::vector<std::int32_t> pages(static_cast<std::size_t>(shape.rows));
    std::iota(pages.begin(), pages.end(), cache::kNullPage + 1);
    const auto rows = static_cast<std::int32_t>(shape.rows);
    const auto q_len = static_cast<std::int32_t>(shape.tokens);
    batch::BatchBuilder builder({.absorbed_tokens = shape.rows * shape.tokens,
                                 .absorbed_rows = rows,
                                 .gather = shape.rows * shape.tokens,
                                 .max_q_len = q_len,
                                 .max_kv_len = q_len,
                                 .table_rows = rows,
                                 .block_stride = 1});
    for (std::int32_t row = 0; row < rows; ++row) {
        batch::RowSpec spec;
        spec.tokens = tokens;
        spec.block_table = std::span(pages).subspan(static_cast<std::size_t>(row), 1);
        spec.table_row = row;
        spec.gather = q_len;
        ESPALIER_RETURN_IF_ERROR(builder.add(spec));
    }
    const batch::HostBatch batch = builder.finish();
    const std::int64_t gather = batch.capacity.gather;
    ESPALIER_ASSIGN_OR_RETURN(
        auto draws, ops::SamplingBatchBuilder::create(
                        {.nodes = gather, .vocabulary = target.info().vocabulary}));
    draws.begin(gather);
    for (std::int64_t node = 0; node < gather; ++node) draws.add({});
    draws.finish();
    const schedule::Time start = clock();
    ESPALIER_RETURN_IF_ERROR(target.launch(batch, {}));
    ESPALIER_RETURN_IF_ERROR(target.sample(draws));
    ESPALIER_RETURN_IF_ERROR(target.wait());
    return static_cast<double>(clock() - start) * 1e-9;
}

}  // namespace

Expected<speculate::StepTime> measure_step_time(Target& target, const Clock& clock) {
    const model::ModelLimits& limits = target.info().limits;
    std::vector<speculate::StepSample> samples;
    const schedule::Time start = clock();
    // The first pass touches every weight; it would tell of the disk, not of the step.
    ESPALIER_RETURN_IF_ERROR(measure(target, clock, kShapes[0]));
    for (int pass = 0; pass < kPasses; ++pass) {
        for (const Shape& shape : kShapes) {
            const std::int64_t tokens = shape.rows * shape.tokens;
            if (tokens > limits.max_tokens || tokens > limits.max_gather ||
                shape.tokens > limits.max_kv_len || shape.rows >= target.info().page_count)
                continue;
            ESPALIER_ASSIGN_OR_RETURN(const double seconds, measure(target, clock, shape));
            samples.push_back({shape.rows, tokens, seconds});
        }
        if (clock() - start > kMostTime) break;
    }
    return speculate::StepTime::fit(samples);
}

}  // namespace espalier::engine
