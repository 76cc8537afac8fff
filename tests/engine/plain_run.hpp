// SPDX-License-Identifier: Apache-2.0
// What a request's output is, plainly: the request alone, without cache, batch, tree or chunks, one
// token at a time, drawn by the plain version of the sampler. The engine must give these bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accept/request_progress.hpp"
#include "engine/request.hpp"
#include "engine/tiny_target.hpp"

namespace espalier::engine {

struct Output {
    std::vector<accept::CommittedToken> tokens;
    std::vector<accept::TokenLogprob> top;
    std::string text;
    accept::Finish finish;
    std::vector<float> prompt_logprobs;
    std::vector<accept::TokenLogprob> prompt_tops;
};

Output run_plain(TinyTarget& target, const CheckedRequest& checked, std::int32_t choice);

}  // namespace espalier::engine
