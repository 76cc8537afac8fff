// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/many_tokens.cuh"

namespace espalier::linalg::cuda {
namespace {

template <class C>
void launch_many(cudaStream_t stream, const Problem& p) {
    ManyParams params;
    params.problem = p;
    params.segments = segments_of(p.n, p.k);
    CHECK(C::kSecond || p.second.n == 0, "two products in tiles of {} tokens", C::kTokens);
    params.first_row_blocks = static_cast<int>(divide_up(p.n, C::kOutputs));
    params.row_blocks =
        params.first_row_blocks + static_cast<int>(divide_up(p.second.n, C::kOutputs));
    params.token_tiles = static_cast<int>(most_token_tiles(p, C::kTokens));
    const std::int64_t items = std::int64_t{params.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    launch(stream, many_tokens_kernel<C>,
           {.blocks = std::min<std::int64_t>(items, multiprocessors()),
            .threads = C::kThreads,
            .shared_bytes = C::shared_bytes(p.indptr != nullptr ? params.token_tiles : 0)},
           params);
}

template <bool kFp8>
void launch_many(cudaStream_t stream, const Problem& p, int tokens) {
    switch (tokens) {
        case 32:
            return launch_many<ManyConfig<kFp8, 32>>(stream, p);
        case 64:
            return launch_many<ManyConfig<kFp8, 64>>(stream, p);
        case 128:
            return launch_many<ManyConfig<kFp8, 128>>(stream, p);
        default:
            CHECK(false, "no kernel for tiles of {} tokens", tokens);
    }
}

}  // namespace

void many_tokens(cudaStream_t stream, const Problem& p, int tokens) {
    if (p.code == WeightCode::e4m3) return launch_many<true>(stream, p, tokens);
    launch_many<false>(stream, p, tokens);
}

}  // namespace espalier::linalg::cuda
