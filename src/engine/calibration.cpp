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
    std::vector<std::int32_t> all(tokens.size());
    std::iota(all.begin(), all.end(), 0);
    batch::BatchBuilder builder;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
        const std::array page = {static_cast<std::int32_t>(cache::kNullPage + 1 + row)};
        batch::RowSpec spec;
        spec.tokens = tokens;
        spec.block_table = page;
        spec.gather = all;
        ESPALIER_RETURN_IF_ERROR(builder.add(spec));
    }
    const batch::BatchView view = builder.finish();
    const std::vector<ops::NodeSampling> nodes(static_cast<std::size_t>(view.cap_gather));
    const schedule::Time start = clock();
    ESPALIER_RETURN_IF_ERROR(target.launch(view, {}));
    target.sample(nodes);
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
