// SPDX-License-Identifier: Apache-2.0
#include "cli/mla_prompts.hpp"

#include <algorithm>
#include <numeric>

#include "conformance/batch.hpp"

namespace espalier::cli {
namespace {

// The arrays of one shape on the device.
class PromptProblem {
  public:
    static Expected<PromptProblem> create(conformance::Device& device, const PagePool& pool,
                                          const MlaShape& shape, const MlaTimingOptions& options);
    const mla::DecompressedCall& call() const { return call_; }

  private:
    template <typename T>
    Expected<T*> put(conformance::Device& device, const std::vector<T>& values) {
        ESPALIER_ASSIGN_OR_RETURN(std::byte * memory, take(device, values.size() * sizeof(T)));
        ESPALIER_RETURN_IF_ERROR(device.upload(memory, values.data(), values.size() * sizeof(T)));
        return reinterpret_cast<T*>(memory);
    }
    Expected<std::byte*> take(conformance::Device& device, std::size_t bytes) {
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory, device.allocate(bytes, conformance::Fill::none));
        memory_.push_back(std::move(memory));
        return memory_.back().data();
    }
    // Normal numbers matter to the clock of a GPU: a million of them, repeated.
    Expected<std::byte*> normal(conformance::Device& device, std::int64_t count, float deviation) {
        Random random(6);
        std::vector<float> values(std::size_t{1} << 20);
        for (float& x : values) x = random.normal() * deviation;
        const std::vector<std::byte> pattern = conformance::narrowed(values, DType::bf16);
        const auto bytes = static_cast<std::size_t>(count) * 2;
        ESPALIER_ASSIGN_OR_RETURN(std::byte * memory, take(device, bytes));
        for (std::size_t at = 0; at < bytes; at += pattern.size())
            ESPALIER_RETURN_IF_ERROR(
                device.upload(memory + at, pattern.data(), std::min(pattern.size(), bytes - at)));
        return memory;
    }
    Expected<void> lay_rows(conformance::Device& device, const PagePool& pool,
                            const MlaShape& shape);

    std::vector<Buffer> memory_;
    mla::DecompressedCall call_;
};

Expected<void> PromptProblem::lay_rows(conformance::Device& device, const PagePool& pool,
                                       const MlaShape& shape) {
    const auto batch = static_cast<std::size_t>(shape.batch);
    mla::RaggedRows& rows = call_.rows;
    std::vector<std::int32_t> starts(batch + 1);
    for (std::size_t b = 0; b <= batch; ++b) starts[b] = static_cast<std::int32_t>(b) * shape.q_len;
    rows.rows = shape.batch;
    rows.token_end = starts.back();
    rows.max_q_len = shape.q_len;
    rows.max_kv_len = shape.kv_len;
    rows.block_stride = (shape.kv_len + pool.kv().page_tokens - 1) / pool.kv().page_tokens;
    std::vector<std::int32_t> pages(batch * static_cast<std::size_t>(rows.block_stride));
    if (std::ssize(pages) > pool.kv().page_count)
        return fail(ErrorKind::exhausted, "{} × {} slots need {} pages, the pool has {}",
                    shape.batch, shape.kv_len, pages.size(), pool.kv().page_count);
    std::iota(pages.begin(), pages.end(), 0);
    Random random(7);
    for (std::size_t i = pages.size(); i > 1; --i)
        std::swap(pages[i - 1], pages[random.bits() % i]);
    ESPALIER_ASSIGN_OR_RETURN(rows.block_table, put(device, pages));
    ESPALIER_ASSIGN_OR_RETURN(rows.q_indptr, put(device, starts));
    ESPALIER_ASSIGN_OR_RETURN(rows.kv_len,
                              put(device, std::vector<std::int32_t>(batch, shape.kv_len)));
    ESPALIER_ASSIGN_OR_RETURN(
        rows.mask, put(device, std::vector<mla::MaskKind>(batch, mla::MaskKind::causal)));
    return {};
}

Expected<PromptProblem> PromptProblem::create(conformance::Device& device, const PagePool& pool,
                                              const MlaShape& shape,
                                              const MlaTimingOptions& options) {
    PromptProblem problem;
    mla::DecompressedCall& call = problem.call_;
    ESPALIER_RETURN_IF_ERROR(problem.lay_rows(device, pool, shape));
    call.heads = shape.heads;
    call.kv = pool.kv();
    call.scale = 0.0721687836f;
    call.q_dtype = DType::bf16;
    call.out_dtype = options.out;
    const std::int64_t packed = call.rows.token_end * shape.heads;
    ESPALIER_ASSIGN_OR_RETURN(call.q, problem.normal(device, packed * mla::kQuery, 1.0f));
    ESPALIER_ASSIGN_OR_RETURN(call.out,
                              problem.take(device, static_cast<std::size_t>(packed * mla::kValue) *
                                                       bytes_of(options.out)));
    constexpr std::int64_t kHalf = mla::kNope * mla::kLatent;  // of one head's keys, or values
    // Outputs of a latent row have variance 1.
    ESPALIER_ASSIGN_OR_RETURN(const std::byte* up,
                              problem.normal(device, shape.heads * 2 * kHalf, 0.0442f));
    call.up_key = {.format = {.code = WeightCode::bf16},
                   .layout = linalg::WeightLayout::rows,
                   .count = shape.heads,
                   .n = mla::kNope,
                   .k = mla::kLatent,
                   .matrix_bytes = 2 * kHalf * 2,
                   .data = up};
    call.up_value = call.up_key;
    call.up_value.data += kHalf * 2;
    return problem;
}

}  // namespace

std::vector<MlaShape> prompt_shapes() {
    std::vector<MlaShape> shapes;
    for (const std::int32_t heads : {16, 128})
        for (const auto& [batch, cached, tokens] :
             {std::array{1, 0, 2048}, {1, 0, 8192}, {8, 0, 2048}, {1, 30000, 2048}})
            shapes.push_back({.batch = batch,
                              .kv_len = cached + tokens,
                              .heads = heads,
                              .q_len = tokens,
                              .peer_seconds = {}});
    return shapes;
}

PromptCost prompt_cost(const MlaShape& shape) {
    const double tokens = shape.q_len;
    const double pairs = tokens * (shape.kv_len - tokens) + tokens * (tokens + 1) / 2;
    const double heads = static_cast<double>(shape.batch) * shape.heads;
    return {2 * heads * (mla::kQuery + mla::kValue) * pairs,
            2 * heads * (mla::kNope + mla::kValue) * mla::kLatent * shape.kv_len};
}

Expected<double> time_decompressed(conformance::Device& device, const PagePool& pool,
                                   const MlaShape& shape, const MlaTimingOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const PromptProblem problem,
                              PromptProblem::create(device, pool, shape, options));
    const mla::DecompressedCall& call = problem.call();
    const mla::Capacities most{.heads = call.heads,
                               .rows = call.rows.rows,
                               .tokens = call.rows.token_end,
                               .max_q_len = call.rows.max_q_len,
                               .max_kv_len = call.rows.max_kv_len,
                               .invariant = false};
    ESPALIER_ASSIGN_OR_RETURN(
        const auto recorded,
        device.record(1, device.kernels().scratch_bytes(most), [&](OpContext& context) {
            return device.kernels().decompressed(context, call);
        }));
    return median_play(*recorded, options.repetitions);
}

}  // namespace espalier::cli
