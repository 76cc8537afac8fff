// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/many_tokens.cuh"

namespace espalier::linalg::cuda {
namespace {

template <class C>
void launch_many(cudaStream_t stream, const Problem& p) {
    ManyParams params;
    params.problem = p;
    params.segments = segments_of(p.n, p.k);
    params.row_blocks = static_cast<int>(divide_up(p.n, C::kOutputs));
    params.token_tiles = static_cast<int>(most_token_tiles(p, C::kTokens));
    const std::int64_t items = std::int64_t{params.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    launch(stream, many_tokens_kernel<C>,
           {.blocks = std::min<std::int64_t>(items, multiprocessors()),
            .threads = C::kThreads,
            .shared_bytes = C::shared_bytes(p.indptr != nullptr ? params.token_tiles : 0)},
           params);
}

}  // namespace

void many_tokens(cudaStream_t stream, const Problem& p) {
    if (p.code == WeightCode::e4m3) return launch_many<ManyConfig<true>>(stream, p);
    launch_many<ManyConfig<false>>(stream, p);
}

}  // namespace espalier::linalg::cuda
