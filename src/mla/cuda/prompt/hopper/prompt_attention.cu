// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/cuda/launch.hpp"
#include "mla/cuda/prompt/hopper/prompt_attention.cuh"

namespace espalier::mla::cuda {
namespace {

template <class C>
cudaError_t launch(const AttendParams& p, int multiprocessors, cudaStream_t stream) {
    static_assert(sizeof(PromptShared<C>) <= 232448, "227 KB is what a block may have");
    return try_launch(prompt_attention_kernel<C>,
                      {.grid = grid_of(std::min(p.items, multiprocessors)),
                       .threads = C::kThreads,
                       .shared_bytes = sizeof(PromptShared<C>),
                       .limit = SharedLimit::raised},
                      stream, p);
}

template <std::int64_t kNopeColumns, std::int64_t kValueColumns>
cudaError_t launch_dims(const AttendParams& p, int multiprocessors, cudaStream_t stream) {
    constexpr int kTile = prompt_tile({kNopeColumns, kValueColumns});
    constexpr auto kNopeInt = static_cast<int>(kNopeColumns);
    constexpr auto kValueInt = static_cast<int>(kValueColumns);
    if (p.scaled_rope)
        return launch<PromptConfig<kNopeInt, kValueInt, kTile, true>>(p, multiprocessors, stream);
    return launch<PromptConfig<kNopeInt, kValueInt, kTile, false>>(p, multiprocessors, stream);
}

}  // namespace

cudaError_t launch_prompt_attention(const AttendParams& p, const HeadDims& dims,
                                    int multiprocessors, cudaStream_t stream) {
    if (p.items == 0) return cudaSuccess;
    if (dims == kWideHead)
        return launch_dims<kWideHead.nope, kWideHead.value>(p, multiprocessors, stream);
    return launch_dims<kNope, kValue>(p, multiprocessors, stream);
}

}  // namespace espalier::mla::cuda
