// SPDX-License-Identifier: Apache-2.0
// Kinds of steps: models, weights, tokens, forms.
#pragma once

#include <string>
#include <vector>

#include "ops/order/layers.hpp"

namespace espalier::order_test {

struct Step {
    std::string name;
    Shape shape;
};

// A dense layer, two with experts, and keys by themselves.
inline void run_layers(Layer& layer) {
    layer.plan_attention();
    layer.enter();
    layer.run(false);
    layer.run(true);
    layer.run(true);
    layer.run_apart();
}

inline void run_each_once(Layer& layer) {
    layer.plan_attention();
    layer.enter();
    layer.run(true);
    layer.run_apart();
}

// Steps of published models, without their numbers.
inline std::vector<Step> published_steps() {
    const std::pair<const char*, Shape> models[] = {{"V2-Lite",
                                                     {.hidden = 2048,
                                                      .heads = 16,
                                                      .dense = 10944,
                                                      .experts = 64,
                                                      .top_k = 6,
                                                      .expert_width = 1408,
                                                      .shared_width = 2816}},
                                                    {"V3",
                                                     {.hidden = 7168,
                                                      .heads = 128,
                                                      .q_lora = 1536,
                                                      .dense = 18432,
                                                      .experts = 256,
                                                      .top_k = 8,
                                                      .expert_width = 2048,
                                                      .shared_width = 2048}},
                                                    {"GLM-4.7-Flash",
                                                     {.hidden = 2048,
                                                      .heads = 20,
                                                      .dims = kHeadDims[1],
                                                      .q_lora = 768,
                                                      .dense = 10240,
                                                      .experts = 64,
                                                      .top_k = 4,
                                                      .expert_width = 1536,
                                                      .shared_width = 1536}},
                                                    {"unshared",
                                                     {.hidden = 1024,
                                                      .heads = 16,
                                                      .dense = 2048,
                                                      .experts = 1024,
                                                      .top_k = 4,
                                                      .expert_width = 512,
                                                      .shared_width = 0}}};
    const WeightFormat formats[] = {{.code = WeightCode::bf16},
                                    {.code = WeightCode::e4m3, .group_k = 128},
                                    {.code = WeightCode::int4, .group_k = 32},
                                    {.code = WeightCode::f32}};
    std::vector<Step> steps;
    for (const auto& [model, shape] : models)
        for (const WeightFormat& format : formats)
            for (const std::int64_t tokens : {1, 2, 8, 9, 16, 17, 32, 64, 128, 256, 512, 2048})
                for (const int part : {2, 1, 0}) {  // absorbed: all, half, none
                    if (part == 1 && tokens == 1) continue;
                    Shape one = shape;
                    one.format = format;
                    one.tokens = tokens;
                    one.absorbed = tokens * part / 2;
                    one.runs = false;
                    if (format.code == WeightCode::f32) one.gate_up = WeightLayout::fragments;
                    steps.push_back({fmt::format("{} {}", model, name_of(format.code)), one});
                }
    return steps;
}

// Small ones with numbers, that between them have every launch.
inline std::vector<Step> small_steps() {
    const WeightFormat bf16{.code = WeightCode::bf16};
    const WeightFormat e4m3{.code = WeightCode::e4m3, .group_k = 128};
    const WeightLayout plain = WeightLayout::fragments;
    std::vector<Step> steps{
        {"one token", {.format = bf16, .tokens = 1, .absorbed = 1}},
        {"one token, low rank", {.format = bf16, .tokens = 1, .absorbed = 1, .q_lora = 32}},
        {"two trees", {.format = bf16, .tokens = 6, .absorbed = 6, .row_tokens = 3, .tree = true}},
        {"two launches", {.format = bf16, .tokens = 2, .absorbed = 2, .launches = 2}},
        {"twelve tokens", {.format = bf16, .tokens = 12, .absorbed = 12, .row_tokens = 3}},
        {"more", {.format = bf16, .tokens = 36, .absorbed = 36, .row_tokens = 4}},
        {"more, low rank",
         {.format = bf16, .tokens = 36, .absorbed = 36, .row_tokens = 4, .q_lora = 32}},
        {"mixed", {.format = bf16, .tokens = 24, .absorbed = 12, .row_tokens = 4}},
        {"a prompt", {.format = bf16, .tokens = 24, .absorbed = 0, .row_tokens = 8, .q_lora = 32}},
        {"unshared", {.format = bf16, .tokens = 3, .absorbed = 3, .shared_width = 0}},
        {"apart", {.format = bf16, .tokens = 3, .absorbed = 3, .gate_up = plain}},
        {"apart, more", {.format = bf16, .tokens = 20, .absorbed = 20, .gate_up = plain}},
        {"arranged", {.format = e4m3, .tokens = 256, .absorbed = 256, .row_tokens = 32}},
    };
    for (Step& step : steps) step.shape.dims = {16, 16};  // quick ones
    return steps;
}

}  // namespace espalier::order_test
