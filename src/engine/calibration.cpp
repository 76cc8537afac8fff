// SPDX-License-Identifier: Apache-2.0
#include "engine/calibration.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <vector>

#include "batch/batch_builder.hpp"
#include "ops/sampling_builder.hpp"
#include "ops/sampling_memory.hpp"

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

Expected<double> measure(model::DeepseekModel& model, cache::KvStorage& storage, const Clock& clock,
                         const Shape& shape) {
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
    const ops::SamplingCapacity capacity{.nodes = view.cap_gather,
                                         .vocabulary = model.config().vocab_size};
    ESPALIER_ASSIGN_OR_RETURN(auto draws, ops::SamplingBatchBuilder::create(capacity));
    ESPALIER_ASSIGN_OR_RETURN(auto memory, ops::SamplingMemory::create(model.device(), capacity));
    draws.begin(capacity.nodes);
    for (std::int64_t node = 0; node < capacity.nodes; ++node) draws.add({});
    draws.finish();
    const schedule::Time start = clock();
    ESPALIER_RETURN_IF_ERROR(model.forward(view, storage));
    const Stream stream = model.device().stream();
    ESPALIER_ASSIGN_OR_RETURN(const ops::SamplingBatch sampled, memory.upload(stream, draws));
    model.sample(sampled);
    std::vector<ops::Draw> drawn(static_cast<std::size_t>(capacity.nodes));
    ESPALIER_RETURN_IF_ERROR(memory.download(stream, drawn, {}));
    return static_cast<double>(clock() - start) * 1e-9;
}

}  // namespace

Clock steady_clock() {
    return [] {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    };
}

Expected<speculate::StepTime> measure_step_time(model::DeepseekModel& model,
                                                cache::KvStorage& storage, const Clock& clock) {
    std::vector<speculate::StepSample> samples;
    const schedule::Time start = clock();
    // The first pass touches every weight; it would tell of the disk, not of the step.
    ESPALIER_RETURN_IF_ERROR(measure(model, storage, clock, kShapes[0]));
    for (int pass = 0; pass < kPasses; ++pass) {
        for (const Shape& shape : kShapes) {
            const std::int64_t tokens = shape.rows * shape.tokens;
            if (tokens > model.limits().max_tokens || tokens > model.limits().max_gather ||
                shape.tokens > model.limits().max_kv_len || shape.rows >= storage.page_count())
                continue;
            ESPALIER_ASSIGN_OR_RETURN(const double seconds, measure(model, storage, clock, shape));
            samples.push_back({shape.rows, tokens, seconds});
        }
        if (clock() - start > kMostTime) break;
    }
    return speculate::StepTime::fit(samples);
}

}  // namespace espalier::engine
