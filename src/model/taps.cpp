// SPDX-License-Identifier: Apache-2.0
#include "model/taps.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace espalier::model {

Expected<TapMemory> TapMemory::create(Device& device, const checkpoint::ModelConfig& config,
                                      std::vector<std::int32_t> layers, bool final_state,
                                      std::int64_t max_tokens) {
    for (const std::int32_t layer : layers)
        if (layer < 0 || layer > config.num_hidden_layers)
            return fail(ErrorKind::invalid, "a tap at layer {} of a model of {}", layer,
                        config.num_hidden_layers);
    if (std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end())
        return fail(ErrorKind::invalid, "the layers of taps are not ascending");
    TapMemory made;
    made.layers_ = std::move(layers);
    const std::int64_t matrices = std::ssize(made.layers_) + (final_state ? 1 : 0);
    const std::int64_t matrix_floats = max_tokens * config.hidden_size;
    ESPALIER_ASSIGN_OR_RETURN(
        made.memory_,
        device.allocate(static_cast<std::size_t>(matrices * matrix_floats) * sizeof(float)));
    const auto matrix = [&](std::int64_t index) {
        return Matrix{
            reinterpret_cast<std::byte*>(made.memory_.as<float>() + index * matrix_floats),
            DType::f32, max_tokens, config.hidden_size, config.hidden_size};
    };
    for (std::int64_t i = 0; i < std::ssize(made.layers_); ++i) made.residual_.push_back(matrix(i));
    if (final_state) made.final_state_ = matrix(matrices - 1);
    return made;
}

}  // namespace espalier::model
